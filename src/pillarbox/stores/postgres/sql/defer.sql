-- Waiting messages wait until a time a person chose, and their keys with them. $1 until, $2 by, $3 limit, $4 now or null
with clock as materialized (
    select coalesce($4::timestamptz, statement_timestamp()) as now
), picked as materialized (
    select id from pillarbox_outbox
     where (waits is null or waits in ('deferred', 'retry'))
       and id not in (select unnest(message_ids) from pillarbox_claim) /* where */
     order by id
     limit $3
), deferred as (
    update pillarbox_outbox set waits = 'retry', available_at = $1, status_at = now
      from clock
     where id in (select id from picked) and (waits is null or waits in ('deferred', 'retry'))
    returning id, message_id, destination
), told as (
    insert into pillarbox_journal (message_id, destination, action, at, by)
    select message_id, destination, 'deferred', now, $2 from deferred, clock order by id
)
select (select count(*) from deferred), (select max(id) from picked), 0
