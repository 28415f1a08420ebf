-- Stops a destination. A second pause keeps the first one's word.
insert ignore into pillarbox_destination (destination, paused_by, paused_at, reason)
values (%(destination)s, %(by)s, %(now)s, %(reason)s)
