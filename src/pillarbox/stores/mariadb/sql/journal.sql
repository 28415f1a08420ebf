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
