-- name: purge_due
-- Closed messages of a destination that outlived their retention, oldest first.
select id, status_at from pillarbox_history
 where status = :state and destination = :destination and status_at <= :now - :older_than
 order by status_at, id
 limit :limit
   for update skip locked

-- name: closed_now
-- State and time of closed messages, to see which are as they were archived. None is redriven before the transaction ends.
select id, status, status_at from pillarbox_history where id in :ids for update

-- name: probe
-- Ask relays to try a destination at once.
insert into pillarbox_probe (destination, probed_at) values (:destination, :now)
    on duplicate key update probed_at = values(probed_at)

-- name: pause
-- Pause a destination. A second pause keeps the reason of the first.
insert ignore into pillarbox_destination (destination, paused_by, paused_at, reason)
values (:destination, :by, :now, :reason)
