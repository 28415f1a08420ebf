-- name: journal_drop_delivered
-- Delete the journal of delivered messages that are not kept: no purge would find it later.
delete j from pillarbox_journal as j
  join pillarbox_outbox as o on o.message_id = j.message_id and o.destination = j.destination
 where o.id in :ids and o.destination = :destination and o.`partition` in :partitions

-- name: purge_journal
-- Delete the journal of messages that are about to be purged.
delete j from pillarbox_journal as j
  join pillarbox_history as h on h.message_id = j.message_id and h.destination = j.destination
 where h.id in :ids

-- name: purge_general
-- Delete old lines that belong to no message.
delete from pillarbox_journal where message_id is null and at <= :now - :older_than order by id limit :limit

-- name: journal_general
-- The latest entries about no message that meet the conditions, in the order they were written.
select message_id, destination, action, at, `by`, attempt, error, detail, id, reason, selection
  from (select * from pillarbox_journal
         where message_id is null and id < :before and (:destination is null or destination = :destination)
           and (:by is null or `by` = :by) and (:all_actions or action in :actions)
         order by id desc limit :limit) as latest
 order by id
