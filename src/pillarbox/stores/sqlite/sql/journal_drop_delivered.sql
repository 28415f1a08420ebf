-- Where nothing is kept of a delivered message, no purge would ever find its journal: it goes with the message.
delete from pillarbox_journal
 where (message_id, destination) in (
        select message_id, destination from pillarbox_outbox
         where id in (select value from json_each(:ids))
           and destination = :destination and partition in (select value from json_each(:partitions))
       )
