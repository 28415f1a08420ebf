-- The journal of messages that are about to be purged.
delete from pillarbox_journal
 where (message_id, destination) in (
        select message_id, destination from pillarbox_history where id in (select value from json_each(:ids)))
