-- The relays that are alive: not expired, and not promising to live longer than a lease.
select relay_id, service, host, pid, version, destinations, reachable, asleep, started_at, expires_at
  from pillarbox_relay
 where expires_at > :now and expires_at <= :now + :lease
 order by relay_id
