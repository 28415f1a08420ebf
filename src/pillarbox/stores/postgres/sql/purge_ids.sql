-- Deletes the closed messages that an archive has taken, with their journal. $1 ids
with gone as (
    delete from pillarbox_history where id = any($1::bigint[])
    returning message_id, destination
), told as (
    delete from pillarbox_journal j using gone where j.message_id = gone.message_id and j.destination = gone.destination
)
select count(*) from gone
