-- Enters a relay into the registry, alive for one lease.
insert into pillarbox_relay (
       relay_id, service, host, pid, version, destinations, reachable, asleep, started_at, expires_at)
values (%(relay_id)s, %(service)s, %(host)s, %(pid)s, %(version)s, %(destinations)s, %(reachable)s, %(asleep)s, %(now)s, %(now)s + %(lease)s)
    on duplicate key update destinations = values(destinations), reachable = values(reachable), asleep = values(asleep),
       expires_at = values(expires_at)
