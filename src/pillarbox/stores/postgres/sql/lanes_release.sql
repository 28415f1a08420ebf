-- Gives lanes up, if they are still this relay's. $1 relay, $2 destination, $3 partitions, $4 their epochs
update pillarbox_lane l set relay_id = null
  from unnest($3::smallint[], $4::bigint[]) as f (partition, epoch)
 where l.destination = $2 and l.partition = f.partition and l.epoch = f.epoch and l.relay_id = $1
returning l.partition
