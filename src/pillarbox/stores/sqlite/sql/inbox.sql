-- name: inbox_failures
-- Messages that consumers could not handle, longest failed first.
select consumer, source, message_id, attempts, last_error, status_at, coalesce(message, x'')
  from pillarbox_inbox
 where status = 'failed' and (:consumer is null or consumer = :consumer) and (:all_ids or message_id in :message_ids)
   and (:error is null or instr(casefolded(coalesce(last_error, '')), :error) > 0)
 order by status_at, consumer, source, message_id
 limit :limit

-- name: purge_inbox
-- Dedup records that are done and outside the window, oldest first.
delete from pillarbox_inbox
 where (consumer, source, message_id) in (
        select consumer, source, message_id from pillarbox_inbox
         where status = 'done' and status_at <= :now - :older_than
         order by status_at
         limit :limit)

-- name: journal_inbox
-- Record an operation on an inbox message.
insert into pillarbox_journal (destination, action, at, by, error, detail)
values ('inbox:' || :consumer, :action, :now, :by, :reason, :source || ' ' || :message_id)
