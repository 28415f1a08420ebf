-- name: find_pending
-- Open messages that are in no live relay's hands, with or without the parked ones.
select id, message_id, destination, partition, kind, type, topic, key,
       case when :payloads then payload when payload is not null then x'' end, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at, 'pending'
  from pillarbox_outbox
 where waits is not 'held' and (:parked or waits is not 'parked')
   and id not in (select value from pillarbox_claim join pillarbox_relay using (relay_id),
                   json_each(case when json_valid(message_ids) then message_ids else '[]' end)
                   where value is not null and expires_at > :now) /* where */
 order by id
 limit :limit

-- name: find_tried
-- Pending messages that were tried before: never fresh, so through the indexes of those that wait, not looking at
-- more than so many of them.
select id, message_id, destination, partition, kind, type, topic, key,
       case when :payloads then payload when payload is not null then x'' end, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at, 'pending'
  from pillarbox_outbox
 where id in (
        select id from (select id, last_error from pillarbox_outbox indexed by pillarbox_outbox_due_idx
                         where waits in ('deferred', 'retry') limit 10000) where last_error is not null
        union all
        select id from (select id, last_error from pillarbox_outbox indexed by pillarbox_outbox_blocked_idx
                         where waits in ('retry', 'parked', 'held') limit 100000) where last_error is not null)
   and waits <> 'held' and (:parked or waits <> 'parked')
   and id not in (select value from pillarbox_claim join pillarbox_relay using (relay_id),
                   json_each(case when json_valid(message_ids) then message_ids else '[]' end)
                   where value is not null and expires_at > :now) /* where */
 order by id
 limit :limit

-- name: find_sending
-- Messages in a live relay's hands: found through the claims.
select id, message_id, destination, partition, kind, type, topic, key,
       case when :payloads then payload when payload is not null then x'' end, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at, 'sending'
  from pillarbox_outbox
 where waits is not 'held' and id in (select value from pillarbox_claim join pillarbox_relay using (relay_id),
                   json_each(case when json_valid(message_ids) then message_ids else '[]' end)
                   where value is not null and expires_at > :now) /* where */
 order by id
 limit :limit

-- name: find_held
-- Failed messages that block their key: few, and never among the fresh ones, so through the index of the blocked.
select id, message_id, destination, partition, kind, type, topic, key,
       case when :payloads then payload when payload is not null then x'' end, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at, 'failed'
  from pillarbox_outbox indexed by pillarbox_outbox_blocked_idx
 where waits = 'held' and waits in ('retry', 'parked', 'held') /* where */
 order by id
 limit :limit

-- name: find_delivered
-- Delivered messages, most of the history. The + keeps SQLite from collecting all of them by status and sorting by id.
select id, message_id, destination, partition, kind, type, topic, key,
       case when :payloads then payload when payload is not null then x'' end, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, null, attempts, last_error, status_at, status
  from pillarbox_history
 where +status = 'delivered' /* where */
 order by id
 limit :limit

-- name: count_selected
-- Count the selected messages exactly, open and closed. The view takes messages of relays that are gone for sending.
select count(*) from pillarbox_messages
 where case when state = 'sending' and id not in (
          select value from pillarbox_claim join pillarbox_relay using (relay_id),
           json_each(case when json_valid(message_ids) then message_ids else '[]' end)
           where value is not null and expires_at > :now) then 'pending' else state end in :states /* where */

-- name: open_destinations
-- The destinations that have open messages: one index probe for each, of those that wait and of those that do not.
with recursive fresh (destination) as (
    select min(destination) from pillarbox_outbox where waits is null
    union all
    select (select min(o.destination) from pillarbox_outbox as o where o.waits is null and o.destination > fresh.destination)
      from fresh where fresh.destination is not null
), waiting (destination) as (
    select min(destination) from pillarbox_outbox indexed by pillarbox_outbox_since_idx where waits is not null
    union all
    select (select min(o.destination) from pillarbox_outbox as o indexed by pillarbox_outbox_since_idx
             where o.waits is not null and o.destination > waiting.destination)
      from waiting where waiting.destination is not null
)
select destination from fresh where destination is not null
union select destination from waiting where destination is not null

-- name: count_fresh
-- How many fresh messages a destination has, looking at no more than so many.
select destination, topic,
       case when id in (select value from pillarbox_claim join pillarbox_relay using (relay_id),
                   json_each(case when json_valid(message_ids) then message_ids else '[]' end)
                   where value is not null and expires_at > :now) then 'sending' else 'pending' end as state,
       1 as due, count(*), min(created_at)
  from (select id, destination, topic, waits, created_at, available_at from pillarbox_outbox
         where destination = :destination and waits is null
         limit :limit)
 group by destination, topic, state, due

-- name: count_waiting
-- How many messages of a destination wait for something, due or not, looking at no more than so many.
select destination, topic,
       case when waits = 'held' then 'failed' when id in (select value from pillarbox_claim join pillarbox_relay using (relay_id),
                   json_each(case when json_valid(message_ids) then message_ids else '[]' end)
                   where value is not null and expires_at > :now) then 'sending' else 'pending' end as state,
       waits = 'held' or since <= :now as due, count(*), min(since)
  from (select id, destination, topic, waits, coalesce(due_at, case waits when 'deferred' then available_at end, created_at) as since
          from pillarbox_outbox indexed by pillarbox_outbox_since_idx
         where destination = :destination and waits = :waits and waits is not null
         limit :limit)
 group by destination, topic, state, due

-- name: ended_destinations
-- The destinations that have messages which ended without a delivery: one index probe for each.
with recursive ended (destination) as (
    select min(destination) from pillarbox_history indexed by pillarbox_history_ended_idx
     where status = :state and status in ('failed', 'skipped', 'discarded')
    union all
    select (select min(h.destination) from pillarbox_history as h indexed by pillarbox_history_ended_idx
             where h.status = :state and h.status in ('failed', 'skipped', 'discarded') and h.destination > ended.destination)
      from ended where ended.destination is not null
)
select destination from ended where destination is not null

-- name: count_ended
-- How many messages of a destination ended so, looking at no more than so many.
select destination, topic, status, 1, count(*), min(status_at)
  from (select destination, topic, status, status_at from pillarbox_history indexed by pillarbox_history_ended_idx
         where status = :state and status in ('failed', 'skipped', 'discarded') and destination = :destination
         order by status_at desc
         limit :limit)
 group by destination, topic, status

-- name: oldest_due
-- When the longest waiting message of each destination first could have gone: one probe per lane for fresh ones, and one
-- per reason to wait.
with recursive fresh (destination) as (
    select min(destination) from pillarbox_outbox where waits is null
    union all
    select (select min(o.destination) from pillarbox_outbox as o where o.waits is null and o.destination > fresh.destination)
      from fresh where fresh.destination is not null
), waiting (destination) as (
    select min(destination) from pillarbox_outbox indexed by pillarbox_outbox_since_idx where waits is not null
    union all
    select (select min(o.destination) from pillarbox_outbox as o indexed by pillarbox_outbox_since_idx
             where o.waits is not null and o.destination > waiting.destination)
      from waiting where waiting.destination is not null
), lane (partition) as (
    select 0 union all select partition + 1 from lane where partition < 63
), reason (waits) as (
    select 'deferred' union all select 'retry' union all select 'parked'
), due as (
    select destination,
           (select o.created_at from pillarbox_outbox as o
             where o.destination = fresh.destination and o.partition = lane.partition and o.waits is null
             order by o.id limit 1) as at
      from fresh cross join lane where fresh.destination is not null
    union all
    select destination,
           (select coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at)
              from pillarbox_outbox as o indexed by pillarbox_outbox_since_idx
             where o.destination = waiting.destination and o.waits = reason.waits and o.waits is not null
             order by coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at)
             limit 1) as at
      from waiting cross join reason where waiting.destination is not null
)
select destination, min(at) from due where at <= :now group by destination

-- name: claims_old
-- Batches that have been in a relay's hands for long, oldest first.
select relay_id, claimed_at, message_ids, strikes
  from pillarbox_claim
 where claimed_at <= :now - :older_than and message_ids <> '[]' and (:relay_id is null or relay_id = :relay_id)
 order by claimed_at
 limit :limit

-- name: failed_groups
-- Failed messages, by destination and fingerprint, each counted up to the limit: a probe of the index for each group, and no more than
-- so many groups of a destination. Those without a fingerprint come last.
with recursive place (destination) as (
    select min(destination) from pillarbox_history indexed by pillarbox_history_failed_idx where status = 'failed'
    union all
    select (select min(m.destination) from pillarbox_history as m indexed by pillarbox_history_failed_idx where m.status = 'failed' and m.destination > place.destination)
      from place where place.destination is not null
), alike (destination, fingerprint, number) as (
    select destination, (select min(m.fingerprint) from pillarbox_history as m indexed by pillarbox_history_failed_idx
                          where m.status = 'failed' and m.destination = place.destination and m.fingerprint is not null), 1
      from place where destination is not null
    union all
    select destination, (select min(m.fingerprint) from pillarbox_history as m indexed by pillarbox_history_failed_idx
                          where m.status = 'failed' and m.destination = alike.destination and m.fingerprint > alike.fingerprint), number + 1
      from alike where fingerprint is not null and number < :groups
), every (destination, fingerprint) as (
    select destination, fingerprint from alike where fingerprint is not null
    union all
    select destination, null from place where destination is not null
)
select destination, fingerprint,
       (select count(*) from (select 1 from pillarbox_history as m indexed by pillarbox_history_failed_idx
                               where m.status = 'failed' and m.destination = every.destination and m.fingerprint is every.fingerprint
                               limit :limit)) as counted
  from every
 where counted > 0

-- name: failed_detail
-- When the first and the last message of a group failed, how many keys the latest have, and the latest.
select (select min(status_at) from pillarbox_history indexed by pillarbox_history_failed_idx
         where status = 'failed' and destination = :destination and fingerprint is :fingerprint),
       max(status_at), count(distinct key),
       (select id from pillarbox_history indexed by pillarbox_history_failed_idx
         where status = 'failed' and destination = :destination and fingerprint is :fingerprint
         order by status_at desc, id desc
         limit 1)
  from (select status_at, key from pillarbox_history indexed by pillarbox_history_failed_idx
         where status = 'failed' and destination = :destination and fingerprint is :fingerprint
         order by status_at desc
         limit :limit)

-- name: held_groups
-- Held messages, by destination and fingerprint, each counted up to the limit: a probe of the index for each group, and no more than
-- so many groups of a destination. Those without a fingerprint come last.
with recursive place (destination) as (
    select min(destination) from pillarbox_outbox indexed by pillarbox_outbox_held_idx where waits = 'held'
    union all
    select (select min(m.destination) from pillarbox_outbox as m indexed by pillarbox_outbox_held_idx where m.waits = 'held' and m.destination > place.destination)
      from place where place.destination is not null
), alike (destination, fingerprint, number) as (
    select destination, (select min(m.fingerprint) from pillarbox_outbox as m indexed by pillarbox_outbox_held_idx
                          where m.waits = 'held' and m.destination = place.destination and m.fingerprint is not null), 1
      from place where destination is not null
    union all
    select destination, (select min(m.fingerprint) from pillarbox_outbox as m indexed by pillarbox_outbox_held_idx
                          where m.waits = 'held' and m.destination = alike.destination and m.fingerprint > alike.fingerprint), number + 1
      from alike where fingerprint is not null and number < :groups
), every (destination, fingerprint) as (
    select destination, fingerprint from alike where fingerprint is not null
    union all
    select destination, null from place where destination is not null
)
select destination, fingerprint,
       (select count(*) from (select 1 from pillarbox_outbox as m indexed by pillarbox_outbox_held_idx
                               where m.waits = 'held' and m.destination = every.destination and m.fingerprint is every.fingerprint
                               limit :limit)) as counted
  from every
 where counted > 0

-- name: held_detail
-- When the first and the last message of a group failed, how many keys the latest have, and the latest.
select (select min(status_at) from pillarbox_outbox indexed by pillarbox_outbox_held_idx
         where waits = 'held' and destination = :destination and fingerprint is :fingerprint),
       max(status_at), count(distinct key),
       (select id from pillarbox_outbox indexed by pillarbox_outbox_held_idx
         where waits = 'held' and destination = :destination and fingerprint is :fingerprint
         order by status_at desc, id desc
         limit 1)
  from (select status_at, key from pillarbox_outbox indexed by pillarbox_outbox_held_idx
         where waits = 'held' and destination = :destination and fingerprint is :fingerprint
         order by status_at desc
         limit :limit)

-- name: backlog
-- How many messages of a destination are due, up to the limit, whatever they wait for.
select :number,
       (select count(*) from (select 1 from pillarbox_outbox where destination = :destination and waits is null limit :limit)) +
       (select count(*) from (
            select 1 from pillarbox_outbox indexed by pillarbox_outbox_since_idx
             where destination = :destination and waits in ('deferred', 'retry', 'parked') and waits is not null
               and coalesce(due_at, case waits when 'deferred' then available_at end, created_at) <= :now
             limit :limit))

-- name: blocking
-- The keys of messages that wait for a retry, or are held, the longest waiting first, of so many that are looked at.
select partition, key, since
  from (select partition, key, coalesce(due_at, case waits when 'deferred' then available_at end, created_at) as since, id
          from pillarbox_outbox indexed by pillarbox_outbox_since_idx
         where destination = :destination and waits = :waits and waits is not null
         order by coalesce(due_at, case waits when 'deferred' then available_at end, created_at)
         limit :limit)
 where typeof(key) = 'text'
 order by since, id

-- name: blocked_head
-- The first blocked message of a key, since when it waits, and how many blocked ones the key has, up to the limit.
select :number, id, waits, coalesce(due_at, case waits when 'deferred' then available_at end, created_at),
       (select count(*) from (
            select 1 from pillarbox_outbox indexed by pillarbox_outbox_blocked_idx
             where destination = :destination and partition = :partition and key = cast(:key as text)
               and waits in ('retry', 'parked', 'held')
             limit :limit))
  from (select id, waits, due_at, available_at, created_at from pillarbox_outbox indexed by pillarbox_outbox_blocked_idx
         where destination = :destination and partition = :partition and key = cast(:key as text)
           and waits in ('retry', 'parked', 'held')
         order by id
         limit 1)

-- name: count_failed
-- Count failed and held messages exactly.
select (select count(*) from pillarbox_history where status = 'failed' /* where */)
     + (select count(*) from pillarbox_outbox indexed by pillarbox_outbox_held_idx where waits = 'held' /* where */)

-- name: tables
-- The tables of the store. SQLite has no estimate of their sizes.
select name from sqlite_master where type = 'table' and name in :tables order by name
