-- name: find_pending
-- Open messages that are in no live relay's hands, with or without the parked ones.
select id, message_id, destination, `partition`, kind, type, topic, `key`,
       case when :payloads then payload when payload is not null then x'' end, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at, 'pending'
  from pillarbox_outbox
 where not waits <=> 'held' and (:parked or not waits <=> 'parked')
   and id not in (select claimed.id from pillarbox_claim as c join pillarbox_relay as r on r.relay_id = c.relay_id
                   cross join json_table(c.message_ids, '$[*]' columns (id bigint path '$')) as claimed
                   where claimed.id is not null and r.expires_at > :now) /* where */
 order by id
 limit :limit

-- name: find_tried
-- Pending messages that were tried before: never fresh, so through the index of those that wait, not looking at more
-- than so many of them.
select id, message_id, destination, `partition`, kind, type, topic, `key`,
       case when :payloads then payload when payload is not null then x'' end, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at, 'pending'
  from pillarbox_outbox
 where id in (select id from (
           select id, last_error from pillarbox_outbox where waits in ('deferred', 'retry', 'parked') limit 100000
       ) as waiting where last_error is not null)
   and waits <> 'held' and (:parked or waits <> 'parked')
   and id not in (select claimed.id from pillarbox_claim as c join pillarbox_relay as r on r.relay_id = c.relay_id
                   cross join json_table(c.message_ids, '$[*]' columns (id bigint path '$')) as claimed
                   where claimed.id is not null and r.expires_at > :now) /* where */
 order by id
 limit :limit

-- name: find_sending
-- Messages in a live relay's hands: found through the claims.
select id, message_id, destination, `partition`, kind, type, topic, `key`,
       case when :payloads then payload when payload is not null then x'' end, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at, 'sending'
  from pillarbox_outbox
 where not waits <=> 'held' and id in (select claimed.id from pillarbox_claim as c join pillarbox_relay as r on r.relay_id = c.relay_id
                   cross join json_table(c.message_ids, '$[*]' columns (id bigint path '$')) as claimed
                   where claimed.id is not null and r.expires_at > :now) /* where */
 order by id
 limit :limit

-- name: find_held
-- Failed messages that block their key: few, and never among the fresh ones.
select id, message_id, destination, `partition`, kind, type, topic, `key`,
       case when :payloads then payload when payload is not null then x'' end, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at, 'failed'
  from pillarbox_outbox
 where waits = 'held' /* where */
 order by id
 limit :limit

-- name: find_delivered
-- Delivered messages, most of the history: read by id instead of collected by status and sorted.
select id, message_id, destination, `partition`, kind, type, topic, `key`,
       case when :payloads then payload when payload is not null then x'' end, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, null, attempts, last_error, status_at, status
  from pillarbox_history force index for order by (primary)
 where status = 'delivered' /* where */
 order by id
 limit :limit

-- name: count_selected
-- Count the selected messages exactly, open and closed. The view takes messages of relays that are gone for sending.
select count(*) from pillarbox_messages
 where case when state = 'sending' and id not in (
          select claimed.id from pillarbox_claim as c join pillarbox_relay as r on r.relay_id = c.relay_id
           cross join json_table(c.message_ids, '$[*]' columns (id bigint path '$')) as claimed
           where claimed.id is not null and r.expires_at > :now) then 'pending' else state end in :states /* where */

-- name: open_destinations
-- The destinations that have open messages.
select distinct destination from pillarbox_outbox where waits is null
union select distinct destination from pillarbox_outbox where waits = 'deferred'
union select distinct destination from pillarbox_outbox where waits = 'retry'
union select distinct destination from pillarbox_outbox where waits = 'parked'
union select distinct destination from pillarbox_outbox where waits = 'held'

-- name: count_fresh
-- How many fresh messages a destination has, looking at no more than so many.
select destination, topic,
       case when id in (select claimed.id from pillarbox_claim as c join pillarbox_relay as r on r.relay_id = c.relay_id
                   cross join json_table(c.message_ids, '$[*]' columns (id bigint path '$')) as claimed
                   where claimed.id is not null and r.expires_at > :now) then 'sending' else 'pending' end as state,
       1 as due, count(*), min(created_at)
  from (select id, destination, topic, waits, created_at, available_at from pillarbox_outbox
         where destination = :destination and waits is null
         limit :limit) as looked_at
 group by destination, topic, state, due

-- name: count_waiting
-- How many messages of a destination wait for something, due or not, looking at no more than so many.
select destination, topic,
       case when waits = 'held' then 'failed' when id in (select claimed.id from pillarbox_claim as c join pillarbox_relay as r on r.relay_id = c.relay_id
                   cross join json_table(c.message_ids, '$[*]' columns (id bigint path '$')) as claimed
                   where claimed.id is not null and r.expires_at > :now) then 'sending' else 'pending' end as state,
       waits = 'held' or since <= :now as due, count(*), min(since)
  from (select id, destination, topic, waits, coalesce(due_at, case waits when 'deferred' then available_at end, created_at) as since
          from pillarbox_outbox
         where destination = :destination and waits = :waits
         limit :limit) as looked_at
 group by destination, topic, state, due

-- name: ended_destinations
-- The destinations that have messages which ended without a delivery.
select distinct destination from pillarbox_history where status = :state

-- name: count_ended
-- How many messages of a destination ended so, looking at no more than so many.
select destination, topic, status, 1, count(*), min(status_at)
  from (select destination, topic, status, status_at from pillarbox_history
         where status = :state and destination = :destination
         order by status_at desc
         limit :limit) as latest
 group by destination, topic, status

-- name: oldest_due
-- When the longest waiting message of each destination first could have gone, of fresh and deferred ones: one probe per
-- lane.
with recursive lane (number) as (
    select 0 union all select number + 1 from lane where number < 63
), due (destination, at) as (
    select place.destination,
           (select o.created_at from pillarbox_outbox as o
             where o.waits is null and o.destination = place.destination and o.`partition` = lane.number
               and o.available_at is null
             order by o.id limit 1)
      from (select distinct destination from pillarbox_outbox where waits is null) as place cross join lane
    union all
    select place.destination,
           (select coalesce(o.due_at, o.available_at) from pillarbox_outbox as o
             where o.waits = 'deferred' and o.destination = place.destination and o.`partition` = lane.number
               and o.available_at <= :now
             order by o.available_at limit 1)
      from (select distinct destination from pillarbox_outbox where waits = 'deferred') as place cross join lane
)
select destination, min(at) from due where at <= :now group by destination

-- name: oldest_waiting
-- The same of messages of one destination that are retried or parked. No index has their times: no more than so many are
-- looked at.
select min(at)
  from (select coalesce(due_at, created_at) as at from pillarbox_outbox
         where waits = :waits and destination = :destination
         limit :limit) as looked
 where at <= :now

-- name: claims_old
-- Batches that have been in a relay's hands for long, oldest first.
select relay_id, claimed_at, message_ids, strikes
  from pillarbox_claim
 where claimed_at <= :now - :older_than and json_length(message_ids) > 0 and (:relay_id is null or relay_id = :relay_id)
 order by claimed_at
 limit :limit

-- name: failed_groups
-- The latest failed messages of a destination by fingerprint, of so many that are looked at.
select fingerprint, count(*), min(status_at), max(status_at), count(distinct `key`)
  from (select fingerprint, status_at, `key` from pillarbox_history
         where status = 'failed' and destination = :destination
         order by status_at desc
         limit :limit) as latest
 group by fingerprint

-- name: failed_latest
-- The latest failed message of a group.
select id from pillarbox_history
 where status = 'failed' and destination = :destination and status_at = :last_at and fingerprint <=> :fingerprint
 order by id desc
 limit 1

-- name: held_destinations
-- The destinations that have held messages.
select distinct destination from pillarbox_outbox where waits = 'held'

-- name: held_groups
-- Held messages of a destination by fingerprint, of so many that are looked at.
select fingerprint, count(*), min(status_at), max(status_at), count(distinct `key`)
  from (select fingerprint, status_at, `key` from pillarbox_outbox
         where waits = 'held' and destination = :destination
         limit :limit) as looked_at
 group by fingerprint

-- name: held_latest
-- The latest held message of a group.
select id from pillarbox_outbox
 where waits = 'held' and destination = :destination and status_at = :last_at and fingerprint <=> :fingerprint
 order by id desc
 limit 1

-- name: backlog
-- How many messages of a destination are due, up to the limit, whatever they wait for. No index has the times of those that
-- wait: no more than so many are looked at.
select :number as number,
       (select count(*) from (select 1 from pillarbox_outbox where destination = :destination and waits is null limit :limit) as fresh)
     + (select coalesce(sum(since <= :now), 0)
          from (select coalesce(due_at, case waits when 'deferred' then available_at end, created_at) as since from pillarbox_outbox
                 where destination = :destination and waits in ('deferred', 'retry', 'parked')
                 limit :limit) as waiting) as due

-- name: blocking
-- The keys of messages that wait for a retry, or are held, the longest waiting first, of so many that are looked at.
select `partition`, `key`, since
  from (select `partition`, `key`, coalesce(due_at, case waits when 'deferred' then available_at end, created_at) as since, id
          from pillarbox_outbox
         where destination = :destination and waits = :waits
         limit :limit) as looked_at
 where `key` is not null
 order by since, id

-- name: blocked_head
-- The first blocked message of a key, since when it waits, and how many blocked ones the key has, up to the limit.
select :number as number, id, waits, coalesce(due_at, case waits when 'deferred' then available_at end, created_at) as since,
       (select count(*) from (
            select 1 from pillarbox_outbox
             where destination = :destination and `partition` = :partition and blocked_key = :key
             limit :limit) as blocked) as blocked
  from (select id, waits, due_at, available_at, created_at from pillarbox_outbox
         where destination = :destination and `partition` = :partition and blocked_key = :key
         order by id
         limit 1) as head

-- name: count_failed
-- Count failed and held messages exactly.
select (select count(*) from pillarbox_history where status = 'failed' /* where */)
     + (select count(*) from pillarbox_outbox where waits = 'held' /* where */)

-- name: tables
-- The tables of the store, and their sizes as the server estimates them.
select table_name, table_rows, data_length + index_length from information_schema.tables
 where table_schema = coalesce(:schema, database()) and table_name in :tables and table_type = 'BASE TABLE'
 order by table_name
