-- name: fence
-- The owner and epoch of each lane, to compare with a fence. The lock keeps them as they are until the commit.
select `partition`, relay_id, epoch, revision from pillarbox_lane
 where destination = :destination and `partition` in :partitions
 order by `partition`
  lock in share mode

-- name: claim
-- Record a batch as claimed by a relay. The number makes repeating it harmless.
insert into pillarbox_claim (relay_id, number, message_ids, strikes, claimed_at)
values (:relay_id, :number, :message_ids, :strikes, :now)
    on duplicate key update strikes = pillarbox_claim.strikes

-- name: failure_wait
-- Let undelivered messages wait. A repeat changes nothing until the time that the first one set.
-- The cast: to MySQL a sum with null is a double, and a double rounds the time of a parked message out of range.
update pillarbox_outbox
   set due_at = coalesce(due_at, case waits when 'deferred' then available_at end, created_at), waits = :waits,
       attempts = :attempts, last_error = coalesce(:error, last_error), status_at = :now, fingerprint = :fingerprint,
       available_at = coalesce(cast(:now + :delay as signed), 9223372036854775807)
 where id in :ids
   and destination = :destination and `partition` in :partitions
   and not (waits <=> :waits and attempts = :attempts and last_error <=> coalesce(:error, last_error)
            and available_at > :now)

-- name: claims_named
-- Some claims of a relay.
select relay_id, number, message_ids, strikes from pillarbox_claim
 where relay_id = :relay_id and number in :numbers
 order by number
   for update

-- name: relay_claims
-- The claims of some relays, locked in one order so that relays do not deadlock.
select relay_id, number, message_ids, strikes from pillarbox_claim
 where relay_id in :relay_ids
 order by relay_id, number
   for update

-- name: gone_claims
-- The claims of relays that are gone, locked in one order so that relays do not deadlock.
select relay_id, number, message_ids, strikes from pillarbox_claim
 where relay_id not in (select relay_id from pillarbox_relay where expires_at > :now)
 order by relay_id, number
   for update

-- name: claims_seen
-- The claims of relays whose lanes are being taken, to find out which of them to lock.
select relay_id, number, message_ids, strikes from pillarbox_claim where relay_id in :relay_ids

-- name: claims_lock
-- Claims of a relay whose lanes are being taken, locked. One that its relay is still writing is passed over: its messages
-- are read as any others, only their strikes are not known.
select relay_id, number, message_ids, strikes from pillarbox_claim
 where relay_id = :relay_id and number in :numbers
 order by number
   for update skip locked

-- name: claims_recover
-- Record recovered messages as claimed by the new owner. A leftover under the number is from a take whose answer was
-- lost.
insert into pillarbox_claim (relay_id, number, message_ids, strikes, claimed_at)
values (:relay_id, :number, :message_ids, :strikes, :now)
    on duplicate key update message_ids = values(message_ids), strikes = values(strikes), claimed_at = values(claimed_at)

-- name: claims_forget
-- Delete claims of relays that are gone when none of their messages is open: no takeover needs them.
delete c from pillarbox_claim as c
  left join pillarbox_relay as r on r.relay_id = c.relay_id
  left join (select distinct held.relay_id, held.number
               from pillarbox_claim as held
              cross join json_table(held.message_ids, '$[*]' columns (id bigint path '$')) as claimed
               join pillarbox_outbox as o on o.id = claimed.id) as open
    on open.relay_id = c.relay_id and open.number = c.number
 where r.relay_id is null and open.number is null
