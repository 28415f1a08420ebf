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
