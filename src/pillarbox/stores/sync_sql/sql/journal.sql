-- name: journal_latest
-- The latest entries of the journal that meet the conditions, in the order they were written.
select message_id, destination, action, at, `by`, attempt, error, detail, id, reason, selection
  from (select * from pillarbox_journal
         where id > :after and id < :before and (:destination is null or destination = :destination)
           and (:by is null or `by` = :by) and (:all_actions or action in :actions)
         order by id desc limit :limit) as latest
 order by id

-- name: journal_message
-- The latest entries about one message that meet the conditions, in the order they were written.
select message_id, destination, action, at, `by`, attempt, error, detail, id, reason, selection
  from (select * from pillarbox_journal
         where message_id = :message_id and id < :before and (:destination is null or destination = :destination)
           and (:by is null or `by` = :by) and (:all_actions or action in :actions)
         order by id desc limit :limit) as latest
 order by id

-- name: journal_end
-- The last entry that is not looked at any more.
select id from pillarbox_journal where id < :before order by id desc limit 1 offset :limit

-- name: journal_note
-- Record an operation on a destination, or on a message of it.
insert into pillarbox_journal (message_id, destination, action, at, `by`, reason)
values (:message_id, :destination, :action, :now, :by, :reason)

-- name: journal_messages
-- Record an operation on messages, before it is carried out: each is open or closed.
insert into pillarbox_journal (message_id, destination, action, at, `by`, reason)
select message_id, destination, :action, :now, :by, :reason
  from (select id, message_id, destination from pillarbox_outbox where id in :ids
        union all
        select id, message_id, destination from pillarbox_history where id in :ids) as changed
 order by id

-- name: journal_store
-- Record an operation or a change that belongs to no message.
insert into pillarbox_journal (destination, action, at, `by`, detail, reason, selection)
values (:destination, :action, :now, :by, :detail, :reason, :selection)

-- name: journal_failure
-- Record an undelivered outcome, written by the relay.
insert into pillarbox_journal (message_id, destination, action, at, `by`, attempt, error, detail)
values (:message_id, :destination, :action, :now, :relay_id, :attempts, :error, :detail)

-- name: journal_restored
-- Record that a message was restored, and when it was closed.
insert into pillarbox_journal (message_id, destination, action, at, `by`, detail)
values (:message_id, :destination, 'restored', :now, :by, :detail)

-- name: tries
-- The failed tries of each message since it was last sent again by a person: how many are sure to be tries, how many
-- ends spent nothing, when the first was, and when the first that spent no attempt was.
select j.message_id, j.destination,
       sum(case when j.action in ('attempt_failed', 'tried') or j.attempt > 0 then 1 else 0 end),
       sum(case when j.action in ('failed', 'held') and coalesce(j.attempt, 0) <= 0 then 1 else 0 end),
       min(j.at), min(case j.action when 'tried' then j.at end)
  from pillarbox_journal as j
  join (select message_id, destination, max(case when action in ('redriven', 'replayed') then id else 0 end) as id
          from pillarbox_journal
         where message_id in :message_ids and (:destination is null or destination = :destination)
         group by message_id, destination) as again on again.message_id = j.message_id and again.destination = j.destination
 where j.message_id in :message_ids and j.action in ('attempt_failed', 'tried', 'failed', 'held') and j.id > again.id
 group by j.message_id, j.destination
