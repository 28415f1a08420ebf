-- The relays that are alive: not expired, and not promising to live longer than a lease.
select relay_id, service, host, pid, version, destinations, reachable, asleep, started_at, expires_at
  from pillarbox_relay
 where expires_at > %(now)s and expires_at <= %(now)s + %(lease)s
 order by relay_id
