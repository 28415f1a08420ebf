-- Relays that expired this long ago.
delete from pillarbox_relay where expires_at <= %(now)s - %(stale_after)s
