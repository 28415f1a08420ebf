-- name: find_pending
-- Open messages that are in no live relay's hands. $1 limit, $2 now or null
select id, message_id, destination, partition, kind, type, topic, key,
       /* payload */ payload, content_type, headers, source, subject,
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
       /* payload */ payload, content_type, headers, source, subject,
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
       /* payload */ payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity') as available_at, waits, attempts, last_error, status_at, 'sending'
  from pillarbox_outbox
 where (waits is null or waits <> 'held') and id = any(array(select m.id from pillarbox_claim c join pillarbox_relay r on r.relay_id = c.relay_id, unnest(c.message_ids) as m (id)
                   where m.id is not null and r.expires_at > coalesce($2::timestamptz, transaction_timestamp()))) /* where */
 order by id
 limit $1

-- name: find_held
-- Failed messages that block their key: through the index of the blocked. $1 limit
select id, message_id, destination, partition, kind, type, topic, key,
       /* payload */ payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity') as available_at, waits, attempts, last_error, status_at, 'failed'
  from pillarbox_outbox
 where waits = 'held' and waits in ('retry', 'parked', 'held') /* where */
 order by id
 limit $1

-- name: find_closed
-- Closed messages of one status. $1 limit, $2 status
select id, message_id, destination, partition, coalesce(kind, 'event'), type, topic, key,
       /* payload */ payload, coalesce(content_type, 'application/json'), headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, null, coalesce(attempts, 0) as attempts, last_error, status_at, status
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
             order by o.destination
             limit $1
        ) o
       ) counted
 where p.destination is not null
union all
select p.destination, first.topic, true, count(*), min(first.created_at), false
  from place p
 cross join lateral (
        select o.id, o.topic, o.created_at from pillarbox_outbox o where o.destination = p.destination and o.waits is null
         order by o.destination, (o.partition::bigint << 57) + o.id
         limit least($1, $2::bigint)
       ) first
 where first.id not in (select m.id from pillarbox_claim c join pillarbox_relay r on r.relay_id = c.relay_id, unnest(c.message_ids) as m (id)
                   where m.id is not null and r.expires_at > coalesce($3::timestamptz, statement_timestamp()))
 group by p.destination, first.topic

-- name: count_waiting
-- How many messages of each destination wait for something, due or not, by the index of their times up to the limit; and
-- the topics of the first of them. Without a topic: all. $1 limit, $2 how many topics are looked up, $3 now or null
with recursive place (destination) as (
    select min(destination) from pillarbox_outbox where waits is not null
    union all
    select (select min(o.destination) from pillarbox_outbox o where o.waits is not null and o.destination > p.destination)
      from place p where p.destination is not null
), side (waits, state, due, low, high) as materialized (
    select r.waits, 'pending', true, '-infinity'::timestamptz, coalesce($3::timestamptz, statement_timestamp())
      from (values ('deferred'), ('retry'), ('parked')) r (waits)
    union all
    select r.waits, 'pending', false, coalesce($3::timestamptz, statement_timestamp()), 'infinity'::timestamptz
      from (values ('deferred'), ('retry'), ('parked')) r (waits)
    union all
    select 'held', 'failed', true, '-infinity'::timestamptz, 'infinity'::timestamptz
)
select p.destination, null, side.state, side.due, counted.count, null::timestamptz, counted.count >= $1
  from place p
 cross join side
 cross join lateral (
        select count(*) from (
            select from pillarbox_outbox o
             where o.destination = p.destination and o.waits = side.waits
               and coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at) > side.low
               and coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at) <= side.high
             order by o.destination, o.waits, coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at)
             limit $1
        ) o
       ) counted
 where p.destination is not null and counted.count > 0
union all
select p.destination, first.topic, side.state, side.due, count(*), min(first.since), false
  from place p
 cross join side
 cross join lateral (
        select o.id, o.topic, coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at) as since
          from pillarbox_outbox o
         where o.destination = p.destination and o.waits = side.waits
           and coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at) > side.low
           and coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at) <= side.high
         order by o.destination, o.waits, coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at)
         limit least($1, $2::bigint)
       ) first
 where side.state = 'failed' or first.id not in (select m.id from pillarbox_claim c join pillarbox_relay r on r.relay_id = c.relay_id, unnest(c.message_ids) as m (id)
                   where m.id is not null and r.expires_at > coalesce($3::timestamptz, statement_timestamp()))
 group by 1, 2, 3, 4

-- name: count_sending
-- How many messages are in relays' hands, found through the claims; the last column says in which index they are.
-- $1 limit, $2 now or null
select destination, topic, 'sending', since <= coalesce($2::timestamptz, statement_timestamp()), count(*), min(since),
       count(*) >= $1, is_fresh
  from (select destination, topic, waits is null as is_fresh, coalesce(due_at, case waits when 'deferred' then available_at end, created_at) as since
          from pillarbox_outbox
         where id = any(array(select m.id from pillarbox_claim c join pillarbox_relay r on r.relay_id = c.relay_id, unnest(c.message_ids) as m (id)
                              where m.id is not null and r.expires_at > coalesce($2::timestamptz, statement_timestamp()) limit $1)) and waits is distinct from 'held') m
 group by 1, 2, 4, 8

-- name: count_closed
-- How many closed messages match. $1 states
select count(*) from pillarbox_history where status = any($1::text[]) /* where */

-- name: history_window
-- The last id of the next delivered messages in history, whether there are no more, and whether all of these were
-- written later than a time. $1 after which id, $2 how many, $3 the time; or null, $4 how long ago, $5 now or null
select max(id), count(*) < $2,
       min(created_at) > coalesce($3::timestamptz, coalesce($5::timestamptz, statement_timestamp()) - $4::interval)
  from (select id, created_at from pillarbox_history
         where status = 'delivered' and id > $1::bigint
         order by id
         limit $2) w

-- name: count_ended
-- How many messages of each destination ended without a delivery, from the index alone up to the limit; and the topics of
-- the latest of them, for which rows must be looked up. Without a topic: all. $1 limit, $2 how many are looked up
with recursive way (status) as (
    values ('failed'), ('skipped'), ('discarded')
), place (status, destination) as (
    select w.status, (select min(h.destination) from pillarbox_history h
                       where h.status = w.status and h.status in ('failed', 'skipped', 'discarded'))
      from way w
    union all
    select p.status, (select min(h.destination) from pillarbox_history h
                       where h.status = p.status and h.status in ('failed', 'skipped', 'discarded')
                         and h.destination > p.destination)
      from place p where p.destination is not null
)
select p.destination, null, p.status, true, counted.count, null::timestamptz, counted.count >= $1
  from place p
 cross join lateral (
        select count(*) from (
            select h.destination from pillarbox_history h
             where h.status = p.status and h.status in ('failed', 'skipped', 'discarded') and h.destination = p.destination
             order by h.status, h.destination
             limit $1
        ) h
       ) counted
 where p.destination is not null
union all
select p.destination, latest.topic, p.status, true, count(*), min(latest.status_at), false
  from place p
 cross join lateral (
        select h.topic, h.status_at from pillarbox_history h
         where h.status = p.status and h.status in ('failed', 'skipped', 'discarded') and h.destination = p.destination
         order by h.status desc, h.destination desc, h.status_at desc
         limit least($1, $2::bigint)
       ) latest
 group by 1, 2, 3

-- name: oldest_due
-- When the longest waiting message of each destination first could have gone: one probe per lane for fresh ones, and one
-- per reason to wait. $1 now or null
with recursive fresh (destination) as (
    select min(destination) from pillarbox_outbox where waits is null
    union all
    select (select min(o.destination) from pillarbox_outbox o where o.waits is null and o.destination > f.destination)
      from fresh f where f.destination is not null
), waiting (destination) as (
    select min(destination) from pillarbox_outbox where waits is not null
    union all
    select (select min(o.destination) from pillarbox_outbox o where o.waits is not null and o.destination > w.destination)
      from waiting w where w.destination is not null
), due as (
    select f.destination, first.created_at as at
      from fresh f
     cross join generate_series(0, 63) lane
     cross join lateral (
            select o.created_at from pillarbox_outbox o
             where o.destination = f.destination and (o.partition::bigint << 57) + o.id > lane::bigint << 57
               and (o.partition::bigint << 57) + o.id <= (lane::bigint << 57) + 144115188075855871 and o.waits is null
             order by o.destination, (o.partition::bigint << 57) + o.id
             limit 1
           ) first
    union all
    select w.destination, first.since
      from waiting w
     cross join (values ('deferred'), ('retry'), ('parked')) reason (waits)
     cross join lateral (
            select coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at) as since
              from pillarbox_outbox o
             where o.destination = w.destination and o.waits = reason.waits
               and coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at)
                   <= coalesce($1::timestamptz, statement_timestamp())
             order by o.destination, o.waits, coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at)
             limit 1
           ) first
)
select destination, min(at) from due group by destination

-- name: rollups
-- The counters of each destination and step of minutes, of all relays together. Step by step, by the primary key: a week grouped at
-- once is sorted on disk. $1 since when, $2 seconds of a step
with bounds as materialized (
    select date_trunc('minute', $1::timestamptz) as low, (select max(minute) from pillarbox_rollup) as high
)
select r.destination, to_timestamp(step.second) as began, r.delivered, r.failed, r.retried, r.discarded, r.returned, r.backlog,
       r.latency_sum, r.latency_max, r.end_to_end_sum, r.end_to_end_max, r.under_5ms, r.under_10ms, r.under_25ms, r.under_50ms,
       r.under_100ms, r.under_250ms, r.under_500ms, r.under_1s, r.under_2500ms, r.under_5s, r.under_10s, r.under_30s, r.under_1m,
       r.under_5m, r.under_30m, r.from_30m
  from bounds
 cross join generate_series(floor(date_part('epoch', low) / $2::bigint)::bigint * $2::bigint, date_part('epoch', high)::bigint, $2::bigint)
            as step (second)
 cross join lateral (
        select destination, sum(delivered)::bigint as delivered, sum(failed)::bigint as failed, sum(retried)::bigint as retried,
               sum(discarded)::bigint as discarded, sum(returned)::bigint as returned, max(backlog) as backlog,
               sum(latency_sum) as latency_sum, max(latency_max) as latency_max, sum(end_to_end_sum) as end_to_end_sum,
               max(end_to_end_max) as end_to_end_max, sum(under_5ms)::bigint as under_5ms, sum(under_10ms)::bigint as under_10ms,
               sum(under_25ms)::bigint as under_25ms, sum(under_50ms)::bigint as under_50ms, sum(under_100ms)::bigint as under_100ms,
               sum(under_250ms)::bigint as under_250ms, sum(under_500ms)::bigint as under_500ms, sum(under_1s)::bigint as under_1s,
               sum(under_2500ms)::bigint as under_2500ms, sum(under_5s)::bigint as under_5s, sum(under_10s)::bigint as under_10s,
               sum(under_30s)::bigint as under_30s, sum(under_1m)::bigint as under_1m, sum(under_5m)::bigint as under_5m,
               sum(under_30m)::bigint as under_30m, sum(from_30m)::bigint as from_30m
          from pillarbox_rollup
         where minute >= greatest(low, to_timestamp(step.second)) and minute < to_timestamp(step.second + $2::bigint)
         group by destination
       ) r
 order by began, destination

-- name: claims_old
-- Batches that have been in a relay's hands for long, oldest first. $1 before when, $2 limit, $3 relay or null for all
select relay_id, claimed_at, array(select m.id from unnest(message_ids) as m (id) where m.id is not null), strikes
  from pillarbox_claim
 where claimed_at <= $1 and message_ids <> '{}' and ($3::uuid is null or relay_id = $3)
 order by claimed_at
 limit $2

-- name: failed_groups
-- Failed messages by destination and fingerprint, each counted up to the limit from the index alone: a probe for each group, and no
-- more than so many groups of a destination. Those without a fingerprint come last. $1 limit, $2 groups of a destination
with recursive place (destination) as (
    select min(destination) from pillarbox_history where status = 'failed'
    union all
    select (select min(m.destination) from pillarbox_history m where m.status = 'failed' and m.destination > p.destination)
      from place p where p.destination is not null
), alike (destination, fingerprint, number) as (
    select p.destination, (select min(m.fingerprint) from pillarbox_history m where m.status = 'failed' and m.destination = p.destination), 1
      from place p where p.destination is not null
    union all
    select a.destination, (select min(m.fingerprint) from pillarbox_history m
                            where m.status = 'failed' and m.destination = a.destination and m.fingerprint > a.fingerprint), a.number + 1
      from alike a where a.fingerprint is not null and a.number < $2
)
select a.destination, a.fingerprint, counted.count
  from alike a
 cross join lateral (
        select count(*) from (select from pillarbox_history m
                               where m.status = 'failed' and m.destination = a.destination and m.fingerprint = a.fingerprint
                               limit $1) m
       ) counted
 where a.fingerprint is not null
union all
select p.destination, null, counted.count
  from place p
 cross join lateral (
        select count(*) from (select from pillarbox_history m
                               where m.status = 'failed' and m.destination = p.destination and m.fingerprint is null
                               limit $1) m
       ) counted
 where p.destination is not null and counted.count > 0

-- name: failed_details
-- When the first and the last message of each group failed, how many keys the latest have, and the latest.
-- $1 destinations, $2 fingerprints, null for none, $3 how many keys are looked up
select g.number, first.status_at, latest.status_at, keys.count, latest.id
  from unnest($1::text[], $2::text[]) with ordinality as g (destination, fingerprint, number)
 cross join lateral (
        select m.status_at from pillarbox_history m
         where m.status = 'failed' and m.destination = g.destination and m.fingerprint = g.fingerprint
         order by m.status_at limit 1
       ) first
 cross join lateral (
        select m.status_at, m.id from pillarbox_history m
         where m.status = 'failed' and m.destination = g.destination and m.fingerprint = g.fingerprint
         order by m.status_at desc, m.id desc limit 1
       ) latest
 cross join lateral (
        select count(distinct l.key) from (
            select m.key from pillarbox_history m
             where m.status = 'failed' and m.destination = g.destination and m.fingerprint = g.fingerprint
             order by m.status_at desc limit $3
        ) l
       ) keys
union all
select g.number, first.status_at, latest.status_at, keys.count, latest.id
  from unnest($1::text[], $2::text[]) with ordinality as g (destination, fingerprint, number)
 cross join lateral (
        select m.status_at from pillarbox_history m
         where m.status = 'failed' and m.destination = g.destination and m.fingerprint is null and g.fingerprint is null
         order by m.status_at limit 1
       ) first
 cross join lateral (
        select m.status_at, m.id from pillarbox_history m
         where m.status = 'failed' and m.destination = g.destination and m.fingerprint is null
         order by m.status_at desc, m.id desc limit 1
       ) latest
 cross join lateral (
        select count(distinct l.key) from (
            select m.key from pillarbox_history m
             where m.status = 'failed' and m.destination = g.destination and m.fingerprint is null
             order by m.status_at desc limit $3
        ) l
       ) keys

-- name: held_groups
-- Held messages by destination and fingerprint, each counted up to the limit from the index alone: a probe for each group, and no
-- more than so many groups of a destination. Those without a fingerprint come last. $1 limit, $2 groups of a destination
with recursive place (destination) as (
    select min(destination) from pillarbox_outbox where waits = 'held'
    union all
    select (select min(m.destination) from pillarbox_outbox m where m.waits = 'held' and m.destination > p.destination)
      from place p where p.destination is not null
), alike (destination, fingerprint, number) as (
    select p.destination, (select min(m.fingerprint) from pillarbox_outbox m where m.waits = 'held' and m.destination = p.destination), 1
      from place p where p.destination is not null
    union all
    select a.destination, (select min(m.fingerprint) from pillarbox_outbox m
                            where m.waits = 'held' and m.destination = a.destination and m.fingerprint > a.fingerprint), a.number + 1
      from alike a where a.fingerprint is not null and a.number < $2
)
select a.destination, a.fingerprint, counted.count
  from alike a
 cross join lateral (
        select count(*) from (select from pillarbox_outbox m
                               where m.waits = 'held' and m.destination = a.destination and m.fingerprint = a.fingerprint
                               limit $1) m
       ) counted
 where a.fingerprint is not null
union all
select p.destination, null, counted.count
  from place p
 cross join lateral (
        select count(*) from (select from pillarbox_outbox m
                               where m.waits = 'held' and m.destination = p.destination and m.fingerprint is null
                               limit $1) m
       ) counted
 where p.destination is not null and counted.count > 0

-- name: held_details
-- When the first and the last message of each group failed, how many keys the latest have, and the latest.
-- $1 destinations, $2 fingerprints, null for none, $3 how many keys are looked up
select g.number, first.status_at, latest.status_at, keys.count, latest.id
  from unnest($1::text[], $2::text[]) with ordinality as g (destination, fingerprint, number)
 cross join lateral (
        select m.status_at from pillarbox_outbox m
         where m.waits = 'held' and m.destination = g.destination and m.fingerprint = g.fingerprint
         order by m.status_at limit 1
       ) first
 cross join lateral (
        select m.status_at, m.id from pillarbox_outbox m
         where m.waits = 'held' and m.destination = g.destination and m.fingerprint = g.fingerprint
         order by m.status_at desc, m.id desc limit 1
       ) latest
 cross join lateral (
        select count(distinct l.key) from (
            select m.key from pillarbox_outbox m
             where m.waits = 'held' and m.destination = g.destination and m.fingerprint = g.fingerprint
             order by m.status_at desc limit $3
        ) l
       ) keys
union all
select g.number, first.status_at, latest.status_at, keys.count, latest.id
  from unnest($1::text[], $2::text[]) with ordinality as g (destination, fingerprint, number)
 cross join lateral (
        select m.status_at from pillarbox_outbox m
         where m.waits = 'held' and m.destination = g.destination and m.fingerprint is null and g.fingerprint is null
         order by m.status_at limit 1
       ) first
 cross join lateral (
        select m.status_at, m.id from pillarbox_outbox m
         where m.waits = 'held' and m.destination = g.destination and m.fingerprint is null
         order by m.status_at desc, m.id desc limit 1
       ) latest
 cross join lateral (
        select count(distinct l.key) from (
            select m.key from pillarbox_outbox m
             where m.waits = 'held' and m.destination = g.destination and m.fingerprint is null
             order by m.status_at desc limit $3
        ) l
       ) keys

-- name: blocking
-- The keys of messages that wait for a retry, or are held, with since when, the longest waiting first, of so many that are
-- looked at. $1 destination, $2 how many of each
select looked.partition, looked.key, looked.since
  from (values ('retry'), ('held')) reason (waits)
 cross join lateral (
        select o.partition, o.key, o.id, coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at) as since
          from pillarbox_outbox o
         where o.destination = $1 and o.waits = reason.waits
         order by o.destination, o.waits, coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at)
         limit $2
       ) looked
 where looked.key is not null
 order by looked.since, looked.id

-- name: blocked_heads
-- The first blocked message of each key, since when it waits, and how many blocked ones the key has, up to the limit.
-- $1 destination, $2 partitions, $3 keys, $4 limit
select k.number, head.id, head.waits, head.since, counted.count
  from unnest($2::smallint[], $3::text[]) with ordinality as k (partition, key, number)
 cross join lateral (
        select o.id, o.waits, coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at) as since
          from pillarbox_outbox o
         where o.destination = $1 and o.partition = k.partition and o.key = k.key and o.waits in ('retry', 'parked', 'held')
         order by o.destination, o.partition, o.key, o.id + 0
         limit 1
       ) head
 cross join lateral (
        select count(*) from (
            select from pillarbox_outbox o
             where o.destination = $1 and o.partition = k.partition and o.key = k.key and o.waits in ('retry', 'parked', 'held')
             order by o.destination, o.partition, o.key
             limit $4) o
       ) counted

-- name: tables
-- The tables of the store, with their partitions together, and their sizes as the server estimates them; no rows where one
-- of them was never analysed, and has some. $1 names as regclass takes them
select t.name,
       case when bool_or(c.reltuples < 0 and pg_relation_size(c.oid) > 0) then null
            else sum(greatest(c.reltuples, 0))::bigint end,
       sum(pg_total_relation_size(c.oid))::bigint, sum(coalesce(s.n_dead_tup, 0))::bigint
  from unnest($1::text[]) as t (name)
  join pg_class root on root.oid = to_regclass(t.name) and root.relkind in ('r', 'p')
 cross join lateral (
        select root.oid union select relid from pg_partition_tree(root.oid) where isleaf
       ) part (oid)
  join pg_class c on c.oid = part.oid
  left join pg_stat_user_tables s on s.relid = c.oid
 group by t.name
 order by t.name
