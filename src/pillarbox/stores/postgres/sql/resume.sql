-- Starts a destination again. $1 destination, $2 by, $3 now or null
with resumed as (
    delete from pillarbox_destination where destination = $1
    returning destination
)
insert into pillarbox_journal (destination, action, at, by)
select destination, 'resumed', coalesce($3::timestamptz, statement_timestamp()), $2 from resumed
returning destination
