-- Gives a lane up, if it is still this relay's.
update pillarbox_lane set relay_id = null
 where destination = :destination and partition = :partition and relay_id = :relay_id and epoch = :epoch
