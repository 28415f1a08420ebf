-- Has failed messages of an inbox handled again: the consumer finds them.
-- $1 consumer or null, $2 message ids or null, $3 part of the error or null, $4 limit, $5 by, $6 now or null
with clock as materialized (
    select coalesce($6::timestamptz, statement_timestamp()) as now
), picked as materialized (
    select consumer, source, message_id from pillarbox_inbox
     where status = 'failed' and ($1::text is null or consumer = $1) and ($2::text[] is null or message_id = any($2))
       and ($3::text is null or position(lower($3) in lower(coalesce(last_error, ''))) > 0)
     order by status, status_at
     limit $4
       for update skip locked
), changed as (
    update pillarbox_inbox i set status = 'started', attempts = 0, status_at = now
      from picked p, clock
     where i.consumer = p.consumer and i.source = p.source and i.message_id = p.message_id
    returning i.consumer, i.source, i.message_id
), told as (
    insert into pillarbox_journal (destination, action, at, by, error, detail)
    select 'inbox:' || consumer, 'redriven', now, $5, null, source || ' ' || message_id
      from changed, clock
)
select count(*) from changed
