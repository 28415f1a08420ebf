-- Relays whose lanes were taken because they had expired.
delete from pillarbox_relay where relay_id in %(relay_ids)s
