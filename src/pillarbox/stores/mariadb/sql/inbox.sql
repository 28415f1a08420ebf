-- name: inbox_failures
-- Messages that consumers could not handle, longest failed first.
select convert(consumer using utf8mb4), convert(source using utf8mb4), convert(message_id using utf8mb4),
        attempts, last_error, status_at, coalesce(message, '')
  from pillarbox_inbox
 where status = 'failed' and (:consumer is null or consumer = :consumer)
   and (:all_ids or message_id in :message_ids)
   and (:error is null or instr(lower(coalesce(last_error, '')), :error) > 0)
 order by status_at, consumer, source, message_id
 limit :limit

-- name: purge_inbox
-- Dedup records that are done and outside the window, oldest first.
delete from pillarbox_inbox
 where status = 'done' and status_at <= :now - :older_than
 order by status_at
 limit :limit

-- name: journal_inbox
-- Record an operation on an inbox message.
insert into pillarbox_journal (destination, action, at, `by`, error, detail)
values (concat('inbox:', :consumer), :action, :now, :by, :reason, concat(:source, ' ', :message_id))
