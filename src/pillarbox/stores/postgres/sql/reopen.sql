-- Closed messages, and held ones, go back to be sent again: at the end of nobody's queue, never as fresh ones.
-- $1 statuses, $2 held too, $3 new destination or null, $4 limit, $5 action, $6 by, $7 now or null
with clock as materialized (
    select coalesce($7::timestamptz, statement_timestamp()) as now
), closed as materialized (
    select id, payload is null as bare from pillarbox_history
     where status = any($1::text[]) /* where */
     order by id
     limit $4
), held as materialized (
    select id from pillarbox_outbox
     where $2 and waits = 'held' /* where */
     order by id
     limit $4
), picked as materialized (
    select id, bare from (select id, bare from closed union all select id, false from held) p
     order by id
     limit $4
), moved as (
    delete from pillarbox_history
     where id in (select id from picked where not bare) and status = any($1::text[])
    returning *
), back as (
    insert into pillarbox_outbox (
           id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
           correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at)
    overriding system value
    select id, message_id, coalesce($3, destination), partition, kind, type, topic, key, payload, content_type, headers, source,
           subject, correlation_id, causation_id, event_time, created_at, now, 'retry', 0, last_error, now
      from moved, clock
), freed as (
    update pillarbox_outbox
       set waits = 'retry', available_at = now, attempts = 0, status_at = now, destination = coalesce($3, destination)
      from clock
     where id in (select id from picked) and waits = 'held'
    returning id, message_id, destination
), told as (
    insert into pillarbox_journal (message_id, destination, action, at, by)
    select message_id, destination, $5, now, $6
      from (select id, message_id, destination from moved union all select id, message_id, destination from freed) m, clock
     order by id
)
select (select count(*) from moved) + (select count(*) from freed), (select max(id) from picked),
       (select count(*) from picked where bare)
