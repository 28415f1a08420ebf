-- Who owns the lanes of a destination, under which epoch: what a fence is compared with.
select partition, relay_id, epoch from pillarbox_lane where destination = :destination and partition in (select value from json_each(:partitions))
