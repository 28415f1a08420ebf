-- Enters a relay into the registry, alive for one lease.
insert into pillarbox_relay (
       relay_id, service, host, pid, version, destinations, reachable, asleep, started_at, expires_at)
values (:relay_id, :service, :host, :pid, :version, :destinations, :reachable, :asleep, :now, :now + :lease)
    on conflict (relay_id) do update
   set destinations = excluded.destinations, reachable = excluded.reachable, asleep = excluded.asleep,
       expires_at = excluded.expires_at
