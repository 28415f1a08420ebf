-- name: journal_drop_delivered
-- Delete the journal of delivered messages that are not kept: no purge would find it later.
delete from pillarbox_journal
 where (message_id, destination) in (
        select message_id, destination from pillarbox_outbox
         where id in :ids
           and destination = :destination and partition in :partitions
       )

-- name: purge_journal
-- Delete the journal of messages that are about to be purged.
delete from pillarbox_journal
 where (message_id, destination) in (
        select message_id, destination from pillarbox_history where id in :ids)

-- name: purge_general
-- Delete old lines that belong to no message.
delete from pillarbox_journal
 where id in (select id from pillarbox_journal indexed by pillarbox_journal_general_idx
              where message_id is null and at <= :now - :older_than order by id limit :limit)

-- name: journal_general
-- The latest entries about no message that meet the conditions, in the order they were written.
select message_id, destination, action, at, `by`, attempt, error, detail, id, reason, selection
  from (select * from pillarbox_journal indexed by pillarbox_journal_general_idx
         where message_id is null and id < :before and (:destination is null or destination = :destination)
           and (:by is null or `by` = :by) and (:all_actions or action in :actions)
         order by id desc limit :limit) as latest
 order by id
