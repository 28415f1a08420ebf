-- name: purge_due
-- Closed messages that outlived their retention, oldest first.
select id, status_at from pillarbox_history
 where status = :state and status_at <= :now - :older_than
 order by status_at, id
 limit :limit

-- name: closed_now
-- State and time of closed messages, to see which are as they were archived.
select id, status, status_at from pillarbox_history where id in :ids

-- name: probe
-- Ask relays to try a destination at once.
insert into pillarbox_probe (destination, probed_at) values (:destination, :now)
    on conflict (destination) do update set probed_at = excluded.probed_at

-- name: pause
-- Pause a destination. A second pause keeps the reason of the first.
insert into pillarbox_destination (destination, paused_by, paused_at, reason)
values (:destination, :by, :now, :reason)
    on conflict (destination) do nothing
