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
 where id in (select id from pillarbox_journal where message_id is null and at <= :now - :older_than order by id limit :limit)
