-- Which destinations are paused, by whom, since when and why.
select destination, paused_by, paused_at, reason from pillarbox_destination order by destination
