-- A new owner, a new epoch. $1 relay, $2 destination, $3 partitions
update pillarbox_lane set relay_id = $1, epoch = epoch + 1
 where destination = $2 and partition = any($3::smallint[])
returning partition, epoch
