-- A new owner, a new epoch.
update pillarbox_lane set relay_id = :relay_id, epoch = epoch + 1
 where destination = :destination and partition in (select value from json_each(:partitions))
