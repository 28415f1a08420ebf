-- One more lease for a relay that is still alive. $1 relay, $2 lease, $3 reachable, $4 asleep, $5 now or null
update pillarbox_relay
   set expires_at = coalesce($5::timestamptz, statement_timestamp()) + $2::interval, reachable = $3, asleep = $4
 where relay_id = $1 and expires_at > coalesce($5::timestamptz, statement_timestamp())
returning relay_id
