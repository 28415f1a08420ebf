-- Closed messages that outlived their retention, oldest first.
select id from pillarbox_history
 where status = :state and status_at <= :now - :older_than
 order by status_at, id
 limit :limit
