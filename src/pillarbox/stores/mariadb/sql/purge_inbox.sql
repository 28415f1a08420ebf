-- Dedup records that are done and outside the window, oldest first.
delete from pillarbox_inbox
 where status = 'done' and status_at <= %(now)s - %(older_than)s
 order by status_at
 limit %(limit)s
