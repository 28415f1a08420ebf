-- One more lease, for a relay that has not expired.
update pillarbox_relay
   set expires_at = :now + :lease, reachable = :reachable, asleep = :asleep
 where relay_id = :relay_id and expires_at > :now
