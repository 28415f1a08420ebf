-- A new owner, a new epoch.
update pillarbox_lane set relay_id = %(relay_id)s, epoch = epoch + 1
 where destination = %(destination)s and `partition` in %(partitions)s
