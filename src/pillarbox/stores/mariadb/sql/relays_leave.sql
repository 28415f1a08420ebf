-- A relay goes.
delete from pillarbox_relay where relay_id = %(relay_id)s
