-- name: register
-- Enter a relay into the registry, alive for one lease.
insert into pillarbox_relay (
       relay_id, service, host, pid, version, destinations, reachable, asleep, started_at, expires_at)
values (:relay_id, :service, :host, :pid, :version, :destinations, :reachable, :asleep, :now, :now + :lease)
    on conflict (relay_id) do update
   set destinations = excluded.destinations, reachable = excluded.reachable, asleep = excluded.asleep,
       expires_at = excluded.expires_at

-- name: lanes_create
-- Create the rows of lanes that are used for the first time.
insert into pillarbox_lane (destination, partition)
select :destination, value from json_each(:partitions)
 where true
    on conflict (destination, partition) do nothing

-- name: lanes_free
-- Those of the lanes that nobody alive owns, or that are the relay's own.
select l.partition, l.relay_id
  from pillarbox_lane as l
 where l.destination = :destination and l.partition in :partitions
   and (l.relay_id is null or l.relay_id = :relay_id
        or not exists (
            select 1 from pillarbox_relay as r
             where r.relay_id = l.relay_id and r.expires_at > :now and r.expires_at <= :now + :lease))
