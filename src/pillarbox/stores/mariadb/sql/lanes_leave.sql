-- A relay that goes owns nothing any more.
update pillarbox_lane set relay_id = null where relay_id = %(relay_id)s
