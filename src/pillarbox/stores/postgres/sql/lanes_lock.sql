-- Locks lanes that may be free; what another relay is writing in or taking is passed over. $1 destination, $2 partitions
select partition, relay_id from pillarbox_lane
 where destination = $1 and partition = any($2::smallint[])
 order by partition
   for update skip locked
