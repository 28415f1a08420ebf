-- Stops a destination. A second pause keeps the first one's word.
insert into pillarbox_destination (destination, paused_by, paused_at, reason)
values (:destination, :by, :now, :reason)
    on conflict (destination) do nothing
