-- Deletes dedup records that are done and outside the window. $1 how old, $2 limit, $3 now or null
with picked as materialized (
    select consumer, source, message_id from pillarbox_inbox
     where status = 'done' and status_at <= coalesce($3::timestamptz, statement_timestamp()) - $1::interval
     order by status, status_at
     limit $2
       for update skip locked
), gone as (
    delete from pillarbox_inbox i using picked p
     where i.consumer = p.consumer and i.source = p.source and i.message_id = p.message_id
    returning 1
)
select count(*) from gone
