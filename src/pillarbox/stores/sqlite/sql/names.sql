-- The message ids of those that are open in these lanes.
select id, message_id from pillarbox_outbox
 where id in (select value from json_each(:ids))
   and destination = :destination and partition in (select value from json_each(:partitions))
