-- Deletes closed messages that outlived their retention, oldest first, with their journal.
-- $1 status, $2 how old, $3 limit, $4 now or null
with picked as materialized (
    select id from pillarbox_history
     where status = $1 and status_at <= coalesce($4::timestamptz, statement_timestamp()) - $2::interval
     order by status, status_at, id
     limit $3
       for update skip locked
), gone as (
    delete from pillarbox_history where id = any(array(select id from picked))
    returning message_id, destination
), told as (
    delete from pillarbox_journal j using gone where j.message_id = gone.message_id and j.destination = gone.destination
)
select count(*) from gone
