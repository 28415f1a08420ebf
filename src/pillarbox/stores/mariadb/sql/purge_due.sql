-- Closed messages that outlived their retention, oldest first.
select id from pillarbox_history
 where status = %(state)s and status_at <= %(now)s - %(older_than)s
 order by status_at, id
 limit %(limit)s
   for update skip locked
