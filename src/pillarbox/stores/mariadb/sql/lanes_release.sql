-- Gives a lane up, if it is still this relay's.
update pillarbox_lane set relay_id = null
 where destination = %(destination)s and `partition` = %(partition)s and relay_id = %(relay_id)s and epoch = %(epoch)s
