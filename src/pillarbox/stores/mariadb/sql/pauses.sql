-- Which destinations are stopped.
select destination, paused_by, paused_at, reason from pillarbox_destination order by destination
