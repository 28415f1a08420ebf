-- The lanes that have an owner, alive or not.
select destination, `partition`, relay_id from pillarbox_lane where relay_id is not null
