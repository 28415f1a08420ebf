-- name: fence
-- The owner and epoch of each lane, to compare with a fence. The write transaction keeps them as they are.
select partition, relay_id, epoch, revision from pillarbox_lane where destination = :destination and partition in :partitions

-- name: claim
-- Record a batch as claimed by a relay. The number makes repeating it harmless.
insert into pillarbox_claim (relay_id, number, message_ids, strikes, claimed_at)
values (:relay_id, :number, :message_ids, :strikes, :now)
    on conflict (relay_id, number) do nothing

-- name: failure_wait
-- Let undelivered messages wait. A repeat changes nothing until the time that the first one set.
update pillarbox_outbox
   set due_at = coalesce(due_at, case waits when 'deferred' then available_at end, created_at), waits = :waits,
       attempts = :attempts, last_error = coalesce(:error, last_error), status_at = :now, fingerprint = :fingerprint,
       available_at = coalesce(:now + :delay, 9223372036854775807)
 where id in :ids
   and destination = :destination and partition in :partitions
   and not (waits is :waits and attempts = :attempts and last_error is coalesce(:error, last_error)
            and available_at > :now)

-- name: claims_named
-- Some claims of a relay.
select relay_id, number, message_ids, strikes from pillarbox_claim
 where relay_id = :relay_id and number in :numbers
 order by number

-- name: relay_claims
-- The claims of some relays.
select relay_id, number, message_ids, strikes from pillarbox_claim
 where relay_id in :relay_ids
 order by relay_id, number

-- name: gone_claims
-- The claims of relays that are gone.
select relay_id, number, message_ids, strikes from pillarbox_claim
 where relay_id not in (select relay_id from pillarbox_relay where expires_at > :now)
 order by relay_id, number

-- name: claims_seen
-- The claims of relays whose lanes are being taken, to find out which of them to lock.
select relay_id, number, message_ids, strikes from pillarbox_claim where relay_id in :relay_ids

-- name: claims_lock
-- Claims of a relay whose lanes are being taken. The whole file is locked, so none is being written.
select relay_id, number, message_ids, strikes from pillarbox_claim
 where relay_id = :relay_id and number in :numbers
 order by number

-- name: claims_recover
-- Record recovered messages as claimed by the new owner. A leftover under the number is from a take whose answer was
-- lost.
insert into pillarbox_claim (relay_id, number, message_ids, strikes, claimed_at)
values (:relay_id, :number, :message_ids, :strikes, :now)
    on conflict (relay_id, number) do update
   set message_ids = excluded.message_ids, strikes = excluded.strikes, claimed_at = excluded.claimed_at

-- name: claims_forget
-- Delete claims of relays that are gone when none of their messages is open: no takeover needs them.
delete from pillarbox_claim
 where not exists (select 1 from pillarbox_relay as r where r.relay_id = pillarbox_claim.relay_id)
   and not exists (
        select 1 from json_each(case when json_valid(pillarbox_claim.message_ids) then pillarbox_claim.message_ids else '[]' end) as claimed
         cross join pillarbox_outbox as o on o.id = claimed.value)
