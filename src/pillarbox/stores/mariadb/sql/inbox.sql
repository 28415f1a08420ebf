-- name: inbox_failures
-- Messages that consumers could not handle, longest failed first.
select convert(consumer using utf8mb4), convert(source using utf8mb4), convert(message_id using utf8mb4),
        attempts, last_error, status_at, coalesce(message, '')
  from pillarbox_inbox
 where status = 'failed' and (message is not null or not :with_content) and (:consumer is null or consumer = :consumer)
   and (:all_ids or message_id in :message_ids)
   and (:error is null or instr(lower(coalesce(last_error, '')), :error) > 0)
 order by status_at, consumer, source, message_id
 limit :limit

-- name: inbox_counts
-- Failed messages by consumer, among the longest failed.
select convert(consumer using utf8mb4), count(*), min(status_at)
  from (select consumer, status_at from pillarbox_inbox where status = 'failed' order by status_at limit :limit) f
 group by consumer
 order by consumer

-- name: purge_inbox
-- Records of one status, with or without content, that are outside the window, oldest first.
delete from pillarbox_inbox
 where status = :status and (:with_content is null or (message is not null) = :with_content)
   and status_at <= :now - :older_than
 order by status_at
 limit :limit

-- name: journal_inbox
-- Record an operation on an inbox message.
insert into pillarbox_journal (destination, action, at, `by`, reason, detail)
values (concat('inbox:', :consumer), :action, :now, :by, :reason, concat(:source, ' ', :message_id))

-- name: inbox_records
-- What inboxes know of some messages: under each consumer and source, for the primary key begins with them.
select convert(i.consumer using utf8mb4), convert(i.source using utf8mb4), convert(i.message_id using utf8mb4), i.status,
       i.status_at, i.attempts, i.last_error, i.duplicates
  from (select distinct consumer, source from pillarbox_inbox limit :limit) as place
  join pillarbox_inbox as i on i.consumer = place.consumer and i.source = place.source and i.message_id in :message_ids
 order by i.consumer, i.source, i.message_id
