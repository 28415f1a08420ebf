-- A message that ended undelivered is open no longer.
delete from pillarbox_outbox
 where id = :id
   and destination = :destination and partition in (select value from json_each(:partitions))
