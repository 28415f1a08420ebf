-- One more lease, for a relay that has not expired.
update pillarbox_relay
   set expires_at = %(now)s + %(lease)s, reachable = %(reachable)s, asleep = %(asleep)s
 where relay_id = %(relay_id)s and expires_at > %(now)s
