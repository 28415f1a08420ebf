-- Dedup records that are done and outside the window, oldest first.
delete from pillarbox_inbox
 where (consumer, source, message_id) in (
        select consumer, source, message_id from pillarbox_inbox
         where status = 'done' and status_at <= :now - :older_than
         order by status_at
         limit :limit)
