-- name: claim
-- Records a batch as in a relay's hands and parks what must wait, if every lane is still its own.
-- $1 relay, $2 destination, $3 partitions, $4 their epochs, $5 number, $6 ids, $7 strikes, $8 ids to park, in order,
-- $9 now or null, $10 message ids of those to park: an id that the database gave to a later message after it lost commits
-- is left alone
with lanes as materialized (
    select l.partition, l.revision
      from unnest($3::smallint[], $4::bigint[]) as f (partition, epoch)
      join pillarbox_lane l on l.destination = $2 and l.partition = f.partition
     where l.relay_id = $1 and l.epoch = f.epoch
       for share of l
), fence as materialized (
    select count(*) = cardinality($3::smallint[]) as holds from lanes
), claimed as (
    insert into pillarbox_claim (relay_id, number, message_ids, strikes, claimed_at)
    select $1, $5, $6::bigint[], $7, coalesce($9::timestamptz, statement_timestamp())
     where (select holds from fence) and cardinality($6::bigint[]) > 0
        on conflict (relay_id, number) do nothing
), parked as (
    update pillarbox_outbox
       set waits = 'parked', available_at = 'infinity', status_at = coalesce($9::timestamptz, statement_timestamp()),
           due_at = coalesce(due_at, case waits when 'deferred' then available_at end, created_at)
     where id = any($8::bigint[]) and destination = $2 and partition = any($3::smallint[]) and (waits is null or waits = 'deferred')
       and message_id = ($10::uuid[])[width_bucket(id, $8::bigint[])]
       and (select holds from fence)
)
select partition, revision from lanes

-- name: settle
-- Closes delivered messages and takes ids out of their claims, if every lane is still the relay's own.
-- $1 relay, $2 destination, $3 partitions, $4 their epochs, $5 delivered ids, $6 finished claims, $7 touched claims,
-- $8 ids to take out of those, $9 keep, $10 now or null, $11 message ids of the delivered ids, which are in order, or
-- none: an id that the database gave to a later message after it lost commits is left alone. $12 ids that are given back,
-- which are counted. Where claims are named, only what is in them is closed or counted, and every row has the other ids. It
-- reads nothing of history: a plan that does locks every partition.
with lanes as materialized (
    select l.partition
      from unnest($3::smallint[], $4::bigint[]) as f (partition, epoch)
      join pillarbox_lane l on l.destination = $2 and l.partition = f.partition
     where l.relay_id = $1 and l.epoch = f.epoch
       for share of l
), fence as materialized (
    select count(*) = cardinality($3::smallint[]) as holds from lanes
), claimed as materialized (
    select case when cardinality($6::bigint[]) + cardinality($7::bigint[]) = 0 then $5::bigint[]
                else array(select unnest($5::bigint[])
                           intersect
                           select unnest(message_ids) from pillarbox_claim
                            where relay_id = $1 and number = any($6::bigint[] || $7::bigint[])) end as ids
), closed as (
    delete from pillarbox_outbox
     where id = any((select ids from claimed)::bigint[]) and destination = $2 and partition = any($3::smallint[]) and (select holds from fence)
       and message_id = coalesce(($11::uuid[])[width_bucket(id, $5::bigint[])], message_id)
    -- First, because a row is taken apart from its beginning.
    returning least(greatest(
                  date_part('epoch', coalesce($10::timestamptz, statement_timestamp()))
                  - date_part('epoch', coalesce(due_at, case waits when 'deferred' then available_at end, created_at)), 0), 1e10) as latency,
              least(greatest(
                  date_part('epoch', coalesce($10::timestamptz, statement_timestamp())) - date_part('epoch', event_time), 0), 1e10)
              as end_to_end, *
), kept as (
    insert into pillarbox_history (
        id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status)
    -- Null stands for what most messages have, and takes no room: an event, of JSON, delivered at the first attempt.
    select /* id */ id,
           message_id, destination, partition, nullif(kind, 'event'), type, topic, key, payload,
           nullif(content_type, 'application/json'), headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity'), nullif(attempts, 0), last_error, coalesce($10::timestamptz, statement_timestamp()), 'delivered'
      from (select id, message_id, destination, partition, kind, type, topic, key,
                   case $9::text when 'full' then payload end as payload, content_type, headers, source, subject,
                   correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error
              from closed) c
     where $9::text <> 'off'
), took as (
    select width_bucket(latency, '{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800}'::float8[]) as bucket,
           count(*), sum(latency) as latency_sum, max(latency) as latency_max, sum(end_to_end) as end_to_end_sum,
           max(end_to_end) as end_to_end_max
      from closed
     group by 1
), given as materialized (
    select case when cardinality($6::bigint[]) + cardinality($7::bigint[]) = 0 then cardinality($12::bigint[])
                else (select count(*)
                        from (select unnest($12::bigint[])
                              intersect
                              select unnest(message_ids) from pillarbox_claim
                               where relay_id = $1 and number = any($6::bigint[] || $7::bigint[])) g) end as returned
     where cardinality($12::bigint[]) > 0 and (select holds from fence)
), counted as (
    insert into pillarbox_rollup as r (
        minute, destination, relay_id, returned, delivered, latency_sum, latency_max, end_to_end_sum, end_to_end_max, under_5ms,
        under_10ms, under_25ms, under_50ms, under_100ms, under_250ms, under_500ms, under_1s, under_2500ms, under_5s,
        under_10s, under_30s, under_1m, under_5m, under_30m, from_30m)
    select date_trunc('minute', coalesce($10::timestamptz, statement_timestamp())), $2, $1,
           coalesce((select returned from given), 0), coalesce(sum(count), 0), coalesce(sum(latency_sum), 0),
           coalesce(max(latency_max), 0), coalesce(sum(end_to_end_sum), 0), coalesce(max(end_to_end_max), 0),
           coalesce(sum(count) filter (where bucket = 0), 0), coalesce(sum(count) filter (where bucket = 1), 0),
           coalesce(sum(count) filter (where bucket = 2), 0), coalesce(sum(count) filter (where bucket = 3), 0),
           coalesce(sum(count) filter (where bucket = 4), 0), coalesce(sum(count) filter (where bucket = 5), 0),
           coalesce(sum(count) filter (where bucket = 6), 0), coalesce(sum(count) filter (where bucket = 7), 0),
           coalesce(sum(count) filter (where bucket = 8), 0), coalesce(sum(count) filter (where bucket = 9), 0),
           coalesce(sum(count) filter (where bucket = 10), 0), coalesce(sum(count) filter (where bucket = 11), 0),
           coalesce(sum(count) filter (where bucket = 12), 0), coalesce(sum(count) filter (where bucket = 13), 0),
           coalesce(sum(count) filter (where bucket = 14), 0), coalesce(sum(count) filter (where bucket = 15), 0)
      from took
    having count(*) > 0 or (select returned from given) > 0
        on conflict (minute, destination, relay_id) do update
       set returned = r.returned + excluded.returned,
           delivered = r.delivered + excluded.delivered, latency_sum = r.latency_sum + excluded.latency_sum,
           latency_max = greatest(r.latency_max, excluded.latency_max),
           end_to_end_sum = r.end_to_end_sum + excluded.end_to_end_sum,
           end_to_end_max = greatest(r.end_to_end_max, excluded.end_to_end_max),
           under_5ms = r.under_5ms + excluded.under_5ms, under_10ms = r.under_10ms + excluded.under_10ms,
           under_25ms = r.under_25ms + excluded.under_25ms, under_50ms = r.under_50ms + excluded.under_50ms,
           under_100ms = r.under_100ms + excluded.under_100ms, under_250ms = r.under_250ms + excluded.under_250ms,
           under_500ms = r.under_500ms + excluded.under_500ms, under_1s = r.under_1s + excluded.under_1s,
           under_2500ms = r.under_2500ms + excluded.under_2500ms, under_5s = r.under_5s + excluded.under_5s,
           under_10s = r.under_10s + excluded.under_10s, under_30s = r.under_30s + excluded.under_30s,
           under_1m = r.under_1m + excluded.under_1m, under_5m = r.under_5m + excluded.under_5m,
           under_30m = r.under_30m + excluded.under_30m, from_30m = r.from_30m + excluded.from_30m
), forgotten as (
    delete from pillarbox_journal j using closed c
     where $9::text = 'off' and j.message_id = c.message_id and j.destination = c.destination
), finished as (
    delete from pillarbox_claim
     where relay_id = $1 and number = any($6::bigint[]) and (select holds from fence)
), touched as (
    update pillarbox_claim
       set message_ids = array(select unnest(message_ids) except select unnest($8::bigint[]))
     where relay_id = $1 and number = any($7::bigint[]) and (select holds from fence)
)
select partition,
       (select array(select unnest($5::bigint[]) except select unnest(ids))
          from claimed where cardinality(ids) < cardinality($5::bigint[])) as unclaimed
  from lanes

-- name: replaced_id
-- Stands in settle in place of the id where history may have it already: see record_failures.
case when exists (select from pillarbox_history h where h.id = c.id)
     then 4503599627370496 + (random() * 4503599627370495)::bigint else id end

-- name: lanes_share
-- Keeps operators from changing messages in these lanes to the commit, as every settlement does. $1 destination,
-- $2 partitions
select partition from pillarbox_lane
 where destination = $1 and partition = any($2::smallint[])
 order by partition
   for share

-- name: claimed_ids
-- What is in some claims of a relay. $1 relay, $2 claims
select unnest(message_ids) from pillarbox_claim where relay_id = $1 and number = any($2::bigint[])

-- name: record_failures
-- Closes or puts off messages that were not delivered, with a line in the journal for each. Runs behind settle's fence.
-- An id that history has already, after a restore that took the sequence back, is replaced by one above 2^52: no
-- sequence gets there, and a redrive gives such a message a new id.
-- $1 relay, $2 destination, $3 partitions, $4 ids, $5 states, $6 waits, $7 attempts, $8 errors, $9 delays, $10 details,
-- $11 actions (null: no line), $12 destinations to forward to (null: none), $13 message ids (null: the id decides),
-- $14 fingerprints of what fails, or null, $15 now or null. A repeat changes nothing until the time that the first one
-- set.
with trouble as materialized (
    select *, coalesce($15::timestamptz, statement_timestamp()) as now
      from unnest($4::bigint[], $5::text[], $6::text[], $7::integer[], $8::text[], $9::interval[], $10::text[], $11::text[],
                  $12::text[], $13::uuid[], $14::text[])
        as t (message, state, waits_for, spent, error, delay, detail, action, forward_to, sent, failed_as)
), closed as (
    delete from pillarbox_outbox o using trouble t
     where o.id = any($4::bigint[]) and o.id = t.message and t.state <> 'pending' and t.forward_to is null
       and o.destination = $2 and o.partition = any($3::smallint[]) and o.message_id = coalesce(t.sent, o.message_id)
    returning o.*, t.*
), kept as (
    insert into pillarbox_history (
        id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status, relay_id,
       fingerprint)
    select case when exists (select from pillarbox_history h where h.id = closed.id)
                then 4503599627370496 + (random() * 4503599627370495)::bigint else id end,
           message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity'), spent, coalesce(error, last_error), now, state, $1, failed_as
      from closed
), waiting as (
    update pillarbox_outbox o
       set waits = t.waits_for, attempts = t.spent, last_error = coalesce(t.error, o.last_error), status_at = t.now,
           fingerprint = t.failed_as, available_at = case when t.waits_for in ('parked', 'held') then 'infinity' else t.now + coalesce(t.delay, interval '0') end,
           due_at = coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at)
      from trouble t
     where o.id = any($4::bigint[]) and o.id = t.message and t.state = 'pending'
       and o.destination = $2 and o.partition = any($3::smallint[]) and o.message_id = coalesce(t.sent, o.message_id)
       and not (o.waits is not distinct from t.waits_for and o.attempts = t.spent
                and o.last_error is not distinct from coalesce(t.error, o.last_error) and o.available_at > t.now)
    returning o.id, o.message_id, o.destination, t.*
), forwarded as (
    update pillarbox_outbox o
       set destination = t.forward_to, waits = 'retry', available_at = t.now, attempts = 0,
           last_error = coalesce(t.error, o.last_error), status_at = t.now, due_at = t.now
      from trouble t
     where o.id = any($4::bigint[]) and o.id = t.message and t.forward_to is not null
       and o.destination = $2 and o.partition = any($3::smallint[]) and o.message_id = coalesce(t.sent, o.message_id)
    returning o.id, o.message_id, t.*
), counted as (
    insert into pillarbox_rollup as r (minute, destination, relay_id, failed, retried, discarded)
    select date_trunc('minute', now), $2, $1::uuid, failed, retried, discarded
      from (select max(now) as now, count(*) filter (where state = 'failed' or waits_for = 'held') as failed,
                   count(*) filter (where waits_for = 'retry' and action is not null) as retried, count(*) filter (where state = 'discarded') as discarded
              from (select now, state, waits_for, action from closed
                    union all
                    select now, state, waits_for, action from waiting
                    union all
                    select now, state, waits_for, action from forwarded) ended) c
     where failed + retried + discarded > 0
        on conflict (minute, destination, relay_id) do update
       set failed = r.failed + excluded.failed, retried = r.retried + excluded.retried, discarded = r.discarded + excluded.discarded
)
insert into pillarbox_journal (message_id, destination, action, at, by, attempt, error, detail)
select message_id, destination, action, now, $1::uuid::text, spent, error, detail
  from (select id, message_id, destination, action, now, spent, error, detail from closed
        union all
        select id, message_id, destination, action, now, spent, error, detail from waiting
        union all
        select id, message_id, $2, action, now, spent, error, detail from forwarded
        union all
        select id, message_id, $2, 'redriven', now, null, null, null from forwarded) told
 where action is not null

-- name: claims_trim
-- Takes ids out of a relay's claims; a claim left with nothing goes. $1 relay, $2 ids
with lessened as (
    update pillarbox_claim
       set message_ids = array(select unnest(message_ids) except select unnest($2::bigint[]))
     where relay_id = $1 and message_ids && $2::bigint[] and not message_ids <@ $2::bigint[]
)
delete from pillarbox_claim where relay_id = $1 and message_ids <@ $2::bigint[]

-- name: claims_free
-- Takes messages that an operator changes out of the claims of relays that are gone: no takeover may find them there.
-- $1 ids, $2 now or null
update pillarbox_claim c
   set message_ids = array(select unnest(message_ids) except select unnest($1::bigint[]))
 where message_ids && $1::bigint[]
   and not exists (select from pillarbox_relay r
                    where r.relay_id = c.relay_id and r.expires_at > coalesce($2::timestamptz, statement_timestamp()))

-- name: claims_in_lanes
-- The ids in a relay's claims that are open in these lanes. $1 relay, $2 destination, $3 partitions
select o.id
  from pillarbox_claim c cross join lateral unnest(c.message_ids) as m (id)
  join pillarbox_outbox o on o.id = m.id
 where c.relay_id = $1 and o.destination = $2 and o.partition = any($3::smallint[])

-- name: claims_recover
-- One claim of the new owner per count of strikes, for what these relays have claimed in the lanes. Only numbers are
-- returned: a new owner that freezes while it receives more would keep the lanes locked. A claim that its relay is
-- still writing is passed over: its messages are read as any others, and only their strikes are not known. Takeovers do
-- not pass over each other's: see claims_queue. A claim is of one destination, so those of others are not locked. After a
-- lost answer the claims of the first try are among the claims. $1 relay, $2 relays, $3 destination, $4 partitions,
-- $5 first number, $6 now or null
with held as materialized (
    select c.strikes, c.message_ids from pillarbox_claim c
     where c.relay_id = any($2::uuid[])
       and (select o.destination from unnest(c.message_ids) as m (id) join pillarbox_outbox o on o.id = m.id limit 1) = $3
       for update of c skip locked
), moved as materialized (
    select o.id, least(greatest(max(held.strikes), 0), 1000000) as strikes
      from held cross join lateral unnest(held.message_ids) as m (id)
      join pillarbox_outbox o on o.id = m.id
     where o.destination = $3 and o.partition = any($4::smallint[])
     group by o.id
)
insert into pillarbox_claim (relay_id, number, message_ids, strikes, claimed_at)
select $1, $5::bigint - 1 + row_number() over (order by strikes), array_agg(id), strikes,
       coalesce($6::timestamptz, statement_timestamp())
  from moved
 group by strikes
    on conflict (relay_id, number) do update
   set message_ids = array(select unnest(pillarbox_claim.message_ids) union select unnest(excluded.message_ids)),
       strikes = greatest(pillarbox_claim.strikes, excluded.strikes)
returning number, strikes

-- name: claims_queue
-- Lets one takeover at a time recover what these relays have claimed of a destination: two that recover different lanes
-- lock the same claims. Everybody locks in the order of the ids. $1 relays, in order, $2 destination
select pg_advisory_xact_lock(hashtextextended($2::text, ('x' || right(r.id::text, 8))::bit(32)::bigint))
  from unnest($1::uuid[]) as r (id)

-- name: claims_hand_over
-- Takes what is in the new owner's claims out of the old ones. $1 relay, $2 numbers of its claims, $3 relays
with moved as materialized (
    select array_agg(m.id) as ids
      from pillarbox_claim c cross join lateral unnest(c.message_ids) as m (id)
     where c.relay_id = $1 and c.number = any($2::bigint[])
), held as materialized (
    select c.relay_id, c.number from pillarbox_claim c, moved
     where c.relay_id = any($3::uuid[]) and not (c.relay_id = $1 and c.number = any($2::bigint[])) and c.message_ids && moved.ids
       for update of c skip locked
), lessened as (
    update pillarbox_claim c
       set message_ids = array(select unnest(c.message_ids) except select unnest(moved.ids))
      from held, moved
     where c.relay_id = held.relay_id and c.number = held.number
       and c.message_ids && moved.ids and not c.message_ids <@ moved.ids
)
delete from pillarbox_claim c using held, moved
 where c.relay_id = held.relay_id and c.number = held.number and c.message_ids <@ moved.ids

-- name: claims_read
-- The open messages of a relay's claims, each with the number of its claim, without payload and headers: a dead relay
-- may have had many. $1 relay, $2 numbers, $3 destination, $4 partitions
select o.id, o.message_id, o.destination, o.partition, o.kind, o.type, o.topic, o.key, ''::bytea, o.content_type, null::jsonb,
       o.source, o.subject, o.correlation_id, o.causation_id, o.event_time, o.created_at, nullif(o.available_at, 'infinity'),
       o.waits, o.attempts, o.last_error, o.status_at, c.number
  from pillarbox_claim c cross join lateral unnest(c.message_ids) as m (id)
  join pillarbox_outbox o on o.id = m.id
 where c.relay_id = $1 and c.number = any($2::bigint[]) and o.destination = $3 and o.partition = any($4::smallint[])

-- name: claims_forget
-- Removes claims of relays that are gone when nothing in them is open: no takeover needs those.
delete from pillarbox_claim c
 where not exists (select from pillarbox_relay r where r.relay_id = c.relay_id)
   and not exists (select from pillarbox_outbox o where o.id = any(c.message_ids))
