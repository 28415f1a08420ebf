-- name: inbox_failures
-- Messages that consumers could not handle, longest failed first.
select consumer, source, message_id, attempts, last_error, status_at, coalesce(message, x'')
  from pillarbox_inbox
 where status = 'failed' and (message is not null or not :with_content)
   and (:consumer is null or consumer = :consumer) and (:all_ids or message_id in :message_ids)
   and (:error is null or instr(casefolded(cast(coalesce(last_error, '') as blob)), :error) > 0)
 order by status_at, consumer, source, message_id
 limit :limit

-- name: inbox_counts
-- Failed messages by consumer, among the longest failed.
select consumer, count(*), min(status_at)
  from (select consumer, status_at from pillarbox_inbox where status = 'failed' order by status_at limit :limit) f
 group by consumer
 order by consumer

-- name: purge_inbox
-- Records of one status, with or without content, that are outside the window, oldest first.
delete from pillarbox_inbox
 where (consumer, source, message_id) in (
        select consumer, source, message_id from pillarbox_inbox
         where status = :status and (:with_content is null or (message is not null) = :with_content)
           and status_at <= :now - :older_than
         order by status_at
         limit :limit)

-- name: journal_inbox
-- Record an operation on an inbox message.
insert into pillarbox_journal (destination, action, at, by, reason, detail)
values ('inbox:' || :consumer, :action, :now, :by, :reason, :source || ' ' || :message_id)

-- name: inbox_records
-- What inboxes know of some messages: under each consumer and source, for the primary key begins with them.
with recursive reader (consumer) as (
    select min(consumer) from pillarbox_inbox
    union all
    select (select min(i.consumer) from pillarbox_inbox as i where i.consumer > reader.consumer)
      from reader where reader.consumer is not null
), place (consumer, source) as (
    select consumer, (select min(i.source) from pillarbox_inbox as i where i.consumer = reader.consumer)
      from reader where consumer is not null
    union all
    select consumer, (select min(i.source) from pillarbox_inbox as i where i.consumer = place.consumer and i.source > place.source)
      from place where source is not null
     limit :limit
)
select i.consumer, i.source, i.message_id, i.status, i.status_at, i.attempts, i.last_error, i.duplicates
  from place cross join pillarbox_inbox as i on i.consumer = place.consumer and i.source = place.source
 where i.message_id in :message_ids
 order by i.consumer, i.source, i.message_id
