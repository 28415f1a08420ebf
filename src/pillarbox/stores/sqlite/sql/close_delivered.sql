-- Delivered messages are open no longer.
delete from pillarbox_outbox
 where id in (select value from json_each(:ids))
   and destination = :destination and partition in (select value from json_each(:partitions))
