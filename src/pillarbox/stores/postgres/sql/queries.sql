-- name: find_pending
-- Open messages that are in no live relay's hands. $1 limit, $2 now or null
select id, message_id, destination, partition, kind, type, topic, key,
       payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity') as available_at, waits, attempts, last_error, status_at, 'pending'
  from pillarbox_outbox
 where (waits is null or waits <> 'held') and id not in (select m.id from pillarbox_claim c join pillarbox_relay r on r.relay_id = c.relay_id, unnest(c.message_ids) as m (id)
                   where m.id is not null and r.expires_at > coalesce($2::timestamptz, transaction_timestamp())) /* where */
 order by id
 limit $1

-- name: find_pending_bare
-- Open messages that are in no live relay's hands, without their payloads, which a viewer has no right to. $1 limit, $2 now or null
select id, message_id, destination, partition, kind, type, topic, key,
       ''::bytea, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity') as available_at, waits, attempts, last_error, status_at, 'pending'
  from pillarbox_outbox
 where (waits is null or waits <> 'held') and id not in (select m.id from pillarbox_claim c join pillarbox_relay r on r.relay_id = c.relay_id, unnest(c.message_ids) as m (id)
                   where m.id is not null and r.expires_at > coalesce($2::timestamptz, transaction_timestamp())) /* where */
 order by id
 limit $1

-- name: find_tried
-- Pending messages that were tried before: never fresh, so through the indexes of those that wait,
-- not looking at more than so many of them. $1 limit, $2 now or null
select id, message_id, destination, partition, kind, type, topic, key,
       payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity') as available_at, waits, attempts, last_error, status_at, 'pending'
  from pillarbox_outbox
 where id = any(array(
        select id from (select id, last_error from pillarbox_outbox where waits in ('deferred', 'retry')
                         order by destination, partition, available_at, id limit 10000) timed
         where last_error is not null
        union
        select id from (select id, last_error, waits from pillarbox_outbox where waits in ('retry', 'parked', 'held')
                         order by destination, partition, key, id + 0 limit 100000) blocked
         where last_error is not null and waits <> 'held'))
   and id not in (select m.id from pillarbox_claim c join pillarbox_relay r on r.relay_id = c.relay_id, unnest(c.message_ids) as m (id)
                   where m.id is not null and r.expires_at > coalesce($2::timestamptz, transaction_timestamp())) /* where */
 order by id
 limit $1

-- name: find_tried_bare
-- Pending messages that were tried before: never fresh, so through the indexes of those that wait,
-- not looking at more than so many of them, without their payloads, which a viewer has no right to. $1 limit, $2 now or null
select id, message_id, destination, partition, kind, type, topic, key,
       ''::bytea, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity') as available_at, waits, attempts, last_error, status_at, 'pending'
  from pillarbox_outbox
 where id = any(array(
        select id from (select id, last_error from pillarbox_outbox where waits in ('deferred', 'retry')
                         order by destination, partition, available_at, id limit 10000) timed
         where last_error is not null
        union
        select id from (select id, last_error, waits from pillarbox_outbox where waits in ('retry', 'parked', 'held')
                         order by destination, partition, key, id + 0 limit 100000) blocked
         where last_error is not null and waits <> 'held'))
   and id not in (select m.id from pillarbox_claim c join pillarbox_relay r on r.relay_id = c.relay_id, unnest(c.message_ids) as m (id)
                   where m.id is not null and r.expires_at > coalesce($2::timestamptz, transaction_timestamp())) /* where */
 order by id
 limit $1

-- name: find_sending
-- Messages in a live relay's hands: found through the claims. $1 limit, $2 now or null
select id, message_id, destination, partition, kind, type, topic, key,
       payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity') as available_at, waits, attempts, last_error, status_at, 'sending'
  from pillarbox_outbox
 where (waits is null or waits <> 'held') and id = any(array(select m.id from pillarbox_claim c join pillarbox_relay r on r.relay_id = c.relay_id, unnest(c.message_ids) as m (id)
                   where m.id is not null and r.expires_at > coalesce($2::timestamptz, transaction_timestamp()))) /* where */
 order by id
 limit $1

-- name: find_sending_bare
-- Messages in a live relay's hands: found through the claims, without their payloads, which a viewer has no right to. $1 limit, $2 now or null
select id, message_id, destination, partition, kind, type, topic, key,
       ''::bytea, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity') as available_at, waits, attempts, last_error, status_at, 'sending'
  from pillarbox_outbox
 where (waits is null or waits <> 'held') and id = any(array(select m.id from pillarbox_claim c join pillarbox_relay r on r.relay_id = c.relay_id, unnest(c.message_ids) as m (id)
                   where m.id is not null and r.expires_at > coalesce($2::timestamptz, transaction_timestamp()))) /* where */
 order by id
 limit $1

-- name: find_held
-- Failed messages that block their key: through the index of the blocked. $1 limit
select id, message_id, destination, partition, kind, type, topic, key,
       payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity') as available_at, waits, attempts, last_error, status_at, 'failed'
  from pillarbox_outbox
 where waits = 'held' and waits in ('retry', 'parked', 'held') /* where */
 order by id
 limit $1

-- name: find_held_bare
-- Failed messages that block their key: through the index of the blocked, without their payloads, which a viewer has no right to. $1 limit
select id, message_id, destination, partition, kind, type, topic, key,
       ''::bytea, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity') as available_at, waits, attempts, last_error, status_at, 'failed'
  from pillarbox_outbox
 where waits = 'held' and waits in ('retry', 'parked', 'held') /* where */
 order by id
 limit $1

-- name: find_closed
-- Closed messages of one status. $1 limit, $2 status
select id, message_id, destination, partition, kind, type, topic, key,
       payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, null, attempts, last_error, status_at, status
  from pillarbox_history
 where status = $2 /* where */
 order by id
 limit $1

-- name: find_closed_bare
-- Closed messages of one status, without their payloads, which a viewer has no right to. $1 limit, $2 status
select id, message_id, destination, partition, kind, type, topic, key,
       ''::bytea, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, null, attempts, last_error, status_at, status
  from pillarbox_history
 where status = $2 /* where */
 order by id
 limit $1

-- name: count_open
-- How many open messages match, by the state people see. $1 states, $2 now or null
select count(*) from (
    select case when waits = 'held' then 'failed'
                when id in (select m.id from pillarbox_claim c join pillarbox_relay r on r.relay_id = c.relay_id, unnest(c.message_ids) as m (id)
                   where m.id is not null and r.expires_at > coalesce($2::timestamptz, statement_timestamp())) then 'sending'
                else 'pending' end as state
      from pillarbox_outbox where true /* where */
) m where state = any($1::text[])

-- name: count_fresh
-- How many fresh messages each destination has, from the index alone up to the limit; and the topics of the first of
-- them, for which rows must be looked up. Without a topic: all. $1 limit, $2 how many are looked up,
-- $3 now or null
with recursive place (destination) as (
    select min(destination) from pillarbox_outbox where waits is null
    union all
    select (select min(o.destination) from pillarbox_outbox o where o.waits is null and o.destination > p.destination)
      from place p where p.destination is not null
)
select p.destination, null, true as due, counted.count, null::timestamptz, counted.count >= $1
  from place p
 cross join lateral (
        select count(*) from (
            select o.destination from pillarbox_outbox o where o.destination = p.destination and o.waits is null
             order by o.destination, o.partition
             limit $1
        ) o
       ) counted
 where p.destination is not null
union all
select p.destination, first.topic, true, count(*), min(first.created_at), false
  from place p
 cross join lateral (
        select o.id, o.topic, o.created_at from pillarbox_outbox o where o.destination = p.destination and o.waits is null
         order by o.destination, o.partition, o.id + 0
         limit least($1, $2::bigint)
       ) first
 where first.id not in (select m.id from pillarbox_claim c join pillarbox_relay r on r.relay_id = c.relay_id, unnest(c.message_ids) as m (id)
                   where m.id is not null and r.expires_at > coalesce($3::timestamptz, statement_timestamp()))
 group by p.destination, first.topic

-- name: count_timed
-- How many messages of each destination wait for a time, due or not, from the index alone up to the limit; and the
-- topics of the first of them, for which rows must be looked up. Without a topic: all. $1 limit, $2 how many are
-- looked up, $3 now or null
with recursive place (destination) as (
    select min(destination) from pillarbox_outbox where waits in ('deferred', 'retry')
    union all
    select (select min(o.destination) from pillarbox_outbox o
             where o.waits in ('deferred', 'retry') and o.destination > p.destination)
      from place p where p.destination is not null
), side (due, low, high) as materialized (
    select true, '-infinity'::timestamptz, coalesce($3::timestamptz, statement_timestamp())
    union all
    select false, coalesce($3::timestamptz, statement_timestamp()), 'infinity'::timestamptz
)
select p.destination, null, side.due, counted.count, null::timestamptz, counted.count >= $1
  from place p
 cross join side
 cross join lateral (
        select count(*) from (
            select from generate_series(0, 63) lane
             cross join lateral (
                    select from pillarbox_outbox o
                     where o.destination = p.destination and o.partition = lane and o.waits in ('deferred', 'retry')
                       and o.available_at > side.low and o.available_at <= side.high
                     order by o.destination, o.partition, o.available_at, o.id
                     limit $1
                   ) o
             limit $1
        ) o
       ) counted
 where p.destination is not null and counted.count > 0
union all
select p.destination, first.topic, side.due, count(*), min(first.available_at), false
  from place p
 cross join side
 cross join lateral (
        select o.id, o.topic, o.available_at from generate_series(0, 63) lane
         cross join lateral (
                select o.id, o.topic, o.available_at from pillarbox_outbox o
                 where o.destination = p.destination and o.partition = lane and o.waits in ('deferred', 'retry')
                   and o.available_at > side.low and o.available_at <= side.high
                 order by o.destination, o.partition, o.available_at, o.id
                 limit least($1, $2::bigint)
               ) o
         limit least($1, $2::bigint)
       ) first
 where first.id not in (select m.id from pillarbox_claim c join pillarbox_relay r on r.relay_id = c.relay_id, unnest(c.message_ids) as m (id)
                   where m.id is not null and r.expires_at > coalesce($3::timestamptz, statement_timestamp()))
 group by 1, 2, 3

-- name: count_blocked
-- How many messages wait behind another or for a person, looking at no more than so many of each destination, for no
-- index tells them apart. $1 limit, $2 now or null
with recursive place (destination) as (
    select min(destination) from pillarbox_outbox where waits in ('retry', 'parked', 'held')
    union all
    select (select min(o.destination) from pillarbox_outbox o
             where o.waits in ('retry', 'parked', 'held') and o.destination > p.destination)
      from place p where p.destination is not null
)
select p.destination, first.topic, case first.waits when 'held' then 'failed' else 'pending' end, true, count(*),
       min(first.created_at), bool_or(first.is_more)
  from place p
 cross join lateral (
        select o.id, o.topic, o.waits, o.created_at, count(*) over () >= $1 as is_more
          from (select b.id, b.topic, b.waits, b.created_at from pillarbox_outbox b
                 where b.destination = p.destination and b.waits in ('retry', 'parked', 'held')
                 order by b.destination, b.partition, b.key, b.id + 0
                 limit $1) o
       ) first
 where first.waits = 'held' or first.waits = 'parked' and first.id not in (select m.id from pillarbox_claim c join pillarbox_relay r on r.relay_id = c.relay_id, unnest(c.message_ids) as m (id)
                   where m.id is not null and r.expires_at > coalesce($2::timestamptz, statement_timestamp()))
 group by 1, 2, 3

-- name: count_sending
-- How many messages are in relays' hands, found through the claims; the last column says in which index they are.
-- $1 limit, $2 now or null
select destination, topic, 'sending', not is_timed or available_at <= coalesce($2::timestamptz, statement_timestamp()),
       count(*), min(case when is_timed then available_at else created_at end),
       count(*) >= $1, case when is_timed then 'timed' when waits is null then 'fresh' end
  from (select destination, topic, waits, available_at, created_at, coalesce(waits in ('deferred', 'retry'), false) as is_timed
          from pillarbox_outbox
         where id = any(array(select m.id from pillarbox_claim c join pillarbox_relay r on r.relay_id = c.relay_id, unnest(c.message_ids) as m (id)
                              where m.id is not null and r.expires_at > coalesce($2::timestamptz, statement_timestamp()) limit $1)) and waits is distinct from 'held') m
 group by 1, 2, 4, 8

-- name: count_closed
-- How many closed messages match. $1 states
select count(*) from pillarbox_history where status = any($1::text[]) /* where */

-- name: count_ended
-- How many messages ended in each way, looking at no more than the latest so many of each, for no index knows their
-- destinations. $1 limit
select destination, topic, status, true, count(*), min(status_at), bool_or(looked_at >= $1)
  from (select h.*, count(*) over (partition by h.status) as looked_at
          from (values ('delivered'), ('failed'), ('skipped'), ('discarded')) s (status)
         cross join lateral (
                select destination, topic, status, status_at from pillarbox_history where status = s.status
                 order by status desc, status_at desc, id desc
                 limit $1
               ) h) m
 group by destination, topic, status

-- name: oldest_due
-- When the longest waiting message of each destination was due: one probe per lane and reason to wait. What is parked
-- waits for another message, and does not count. $1 now or null
with recursive fresh (destination) as (
    select min(destination) from pillarbox_outbox where waits is null
    union all
    select (select min(o.destination) from pillarbox_outbox o where o.waits is null and o.destination > f.destination)
      from fresh f where f.destination is not null
), timed (destination) as (
    select min(destination) from pillarbox_outbox where waits in ('deferred', 'retry')
    union all
    select (select min(o.destination) from pillarbox_outbox o
             where o.waits in ('deferred', 'retry') and o.destination > t.destination)
      from timed t where t.destination is not null
), due as (
    select f.destination, first.created_at as at
      from fresh f
     cross join generate_series(0, 63) lane
     cross join lateral (
            select o.created_at from pillarbox_outbox o
             where o.destination = f.destination and o.partition = lane and o.waits is null
             order by o.destination, o.partition, o.id + 0
             limit 1
           ) first
    union all
    select t.destination, first.available_at
      from timed t
     cross join generate_series(0, 63) lane
     cross join lateral (
            select o.available_at from pillarbox_outbox o
             where o.destination = t.destination and o.partition = lane and o.waits in ('deferred', 'retry')
               and o.available_at <= coalesce($1::timestamptz, statement_timestamp())
             order by o.destination, o.partition, o.available_at, o.id
             limit 1
           ) first
)
select destination, min(at) from due group by destination

-- name: activity
-- The latest deliveries, newest first. $1 since when, $2 limit
select destination, topic,
       date_part('epoch', status_at - case when attempts = 0 and available_at > created_at then available_at else created_at end),
       date_part('epoch', status_at - event_time), status_at
  from pillarbox_history
 where status = 'delivered' and status_at >= $1 and isfinite(status_at) and isfinite(event_time) and isfinite(created_at)
 order by status desc, status_at desc, id desc
 limit $2

-- name: attempts_failed
-- How many attempts failed lately, looking at no more than the last so many lines. $1 since when, $2 limit
select destination, count(*)
  from (select destination, action, at from pillarbox_journal order by id desc limit $2) latest
 where action = 'attempt_failed' and at >= $1
 group by destination

-- name: claims_old
-- Batches that have been in a relay's hands for long, oldest first. $1 before when, $2 limit
select relay_id, claimed_at, array(select m.id from unnest(message_ids) as m (id) where m.id is not null), strikes
  from pillarbox_claim
 where claimed_at <= $1 and message_ids <> '{}'
 order by claimed_at
 limit $2
