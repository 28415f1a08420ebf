-- Stops a destination. A second pause keeps the first one's word. $1 destination, $2 by, $3 reason, $4 now or null
with paused as (
    insert into pillarbox_destination (destination, paused_by, paused_at, reason)
    values ($1, $2, coalesce($4::timestamptz, statement_timestamp()), $3)
        on conflict (destination) do nothing
    returning destination, paused_at
)
insert into pillarbox_journal (destination, action, at, by, error)
select destination, 'paused', paused_at, $2, $3 from paused
