-- name: claim
-- Records a batch as in a relay's hands and parks what must wait, if every lane is still its own.
-- $1 relay, $2 destination, $3 partitions, $4 their epochs, $5 number, $6 ids, $7 strikes, $8 ids to park, $9 now or null
with lanes as materialized (
    select l.partition
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
       set waits = 'parked', available_at = 'infinity', status_at = coalesce($9::timestamptz, statement_timestamp())
     where id = any($8::bigint[]) and destination = $2 and partition = any($3::smallint[]) and (waits is null or waits = 'deferred')
       and (select holds from fence)
)
select partition from lanes

-- name: settle
-- Closes delivered messages and takes ids out of their claims, if every lane is still the relay's own.
-- $1 relay, $2 destination, $3 partitions, $4 their epochs, $5 delivered ids, $6 finished claims, $7 touched claims,
-- $8 ids to take out of those, $9 keep, $10 now or null
with lanes as materialized (
    select l.partition
      from unnest($3::smallint[], $4::bigint[]) as f (partition, epoch)
      join pillarbox_lane l on l.destination = $2 and l.partition = f.partition
     where l.relay_id = $1 and l.epoch = f.epoch
       for share of l
), fence as materialized (
    select count(*) = cardinality($3::smallint[]) as holds from lanes
), closed as (
    delete from pillarbox_outbox
     where id = any($5::bigint[]) and destination = $2 and partition = any($3::smallint[]) and (select holds from fence)
    returning *
), kept as (
    insert into pillarbox_history (
        id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status, relay_id)
    select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity'), attempts, last_error, coalesce($10::timestamptz, statement_timestamp()), 'delivered', $1
      from (select id, message_id, destination, partition, kind, type, topic, key,
                   case $9::text when 'full' then payload end as payload, content_type, headers, source, subject,
                   correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error
              from closed) c
     where $9::text <> 'off'
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
select partition from lanes

-- name: record_failures
-- Closes or puts off messages that were not delivered, with a line in the journal for each. Runs behind settle's fence.
-- $1 relay, $2 destination, $3 partitions, $4 ids, $5 states, $6 waits, $7 attempts, $8 errors, $9 delays, $10 details,
-- $11 actions (null: no line), $12 now or null
with trouble as materialized (
    select *, coalesce($12::timestamptz, statement_timestamp()) as now
      from unnest($4::bigint[], $5::text[], $6::text[], $7::integer[], $8::text[], $9::interval[], $10::text[], $11::text[])
        as t (message, state, waits_for, spent, error, delay, detail, action)
), closed as (
    delete from pillarbox_outbox o using trouble t
     where o.id = any($4::bigint[]) and o.id = t.message and t.state <> 'pending'
       and o.destination = $2 and o.partition = any($3::smallint[])
    returning o.*, t.*
), kept as (
    insert into pillarbox_history (
        id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status, relay_id)
    select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity'), spent, error, now, state, $1
      from closed
), waiting as (
    update pillarbox_outbox o
       set waits = t.waits_for, attempts = t.spent, last_error = coalesce(t.error, o.last_error), status_at = t.now,
           available_at = case when t.waits_for in ('parked', 'held') then 'infinity' else t.now + coalesce(t.delay, interval '0') end
      from trouble t
     where o.id = any($4::bigint[]) and o.id = t.message and t.state = 'pending'
       and o.destination = $2 and o.partition = any($3::smallint[])
    returning o.id, o.message_id, o.destination, t.*
)
insert into pillarbox_journal (message_id, destination, action, at, by, attempt, error, detail)
select message_id, destination, action, now, $1::uuid::text, spent, error, detail
  from (select id, message_id, destination, action, now, spent, error, detail from closed
        union all
        select id, message_id, destination, action, now, spent, error, detail from waiting) told
 where action is not null

-- name: claims_trim
-- Takes ids out of claims; a claim left with nothing goes. $1 relay, $2 ids
with lessened as (
    update pillarbox_claim
       set message_ids = array(select unnest(message_ids) except select unnest($2::bigint[]))
     where relay_id = $1 and message_ids && $2::bigint[] and not message_ids <@ $2::bigint[]
)
delete from pillarbox_claim where relay_id = $1 and message_ids <@ $2::bigint[]

-- name: claims_recover
-- One claim of the new owner for what it inherits; after a lost answer, the one that the first try made. $1 relay, $2 number, $3 ids, $4 strikes, $5 now or null
insert into pillarbox_claim (relay_id, number, message_ids, strikes, claimed_at)
values ($1, $2, $3, $4, coalesce($5::timestamptz, statement_timestamp()))
    on conflict (relay_id, number) do update
   set message_ids = pillarbox_claim.message_ids || excluded.message_ids,
       strikes = greatest(pillarbox_claim.strikes, excluded.strikes)

-- name: claims_in_lanes
-- The ids in a relay's claims that are open in these lanes. $1 relay, $2 destination, $3 partitions
select o.id
  from pillarbox_claim c cross join lateral unnest(c.message_ids) as m (id)
  join pillarbox_outbox o on o.id = m.id
 where c.relay_id = $1 and o.destination = $2 and o.partition = any($3::smallint[])

-- name: claims_lock
-- The claims of relays whose lanes are being taken, in one order for everybody. $1 relays
select relay_id, number, strikes, message_ids from pillarbox_claim
 where relay_id = any($1::uuid[])
 order by relay_id, number
   for update

-- name: claims_open
-- Those of the claimed messages that are still open in these lanes. $1 ids, $2 destination, $3 partitions
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity'), waits, attempts, last_error,
       status_at
  from pillarbox_outbox
 where id = any($1::bigint[]) and destination = $2 and partition = any($3::smallint[])
 order by id

-- name: claims_forget
-- Removes claims of relays that are gone when nothing in them is open: no takeover needs those.
delete from pillarbox_claim c
 where not exists (select from pillarbox_relay r where r.relay_id = c.relay_id)
   and not exists (select from pillarbox_outbox o where o.id = any(c.message_ids))
