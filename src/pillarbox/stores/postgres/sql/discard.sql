-- Closes failed, held and waiting messages without sending; what is in a relay's hands is left alone.
-- $1 states asked for, $2 reason, $3 by, $4 limit, $5 now or null
with clock as materialized (
    select coalesce($5::timestamptz, statement_timestamp()) as now
), failed as materialized (
    select id from pillarbox_history
     where status = 'failed' and 'failed' = any($1::text[]) /* where */
     order by id
     limit $4
), open as materialized (
    select id from pillarbox_outbox
     where case when waits = 'held' then 'failed' else 'pending' end = any($1::text[])
       and id not in (select unnest(message_ids) from pillarbox_claim) /* where */
     order by id
     limit $4
), picked as materialized (
    select id from (select id from failed union all select id from open) p
     order by id
     limit $4
), renamed as (
    update pillarbox_history set status = 'discarded', last_error = $2, status_at = now
      from clock
     where id in (select id from picked) and status = 'failed'
    returning id, message_id, destination
), closed as (
    delete from pillarbox_outbox where id in (select id from picked)
    returning *
), kept as (
    insert into pillarbox_history (
           id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
           correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status)
    select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
           correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity'), attempts, $2, now, 'discarded'
      from closed, clock
), told as (
    insert into pillarbox_journal (message_id, destination, action, at, by, error)
    select message_id, destination, 'discarded', now, $3, $2
      from (select id, message_id, destination from renamed union all select id, message_id, destination from closed) m, clock
     order by id
)
select (select count(*) from renamed) + (select count(*) from closed), (select max(id) from picked), 0
