-- name: register
-- Enter a relay into the registry, alive for one lease.
insert into pillarbox_relay (
       relay_id, service, host, pid, version, destinations, reachable, asleep, started_at, expires_at, lease, labels)
values (:relay_id, :service, :host, :pid, :version, :destinations, :reachable, :asleep, :now, :now + :lease, :lease,
       :labels)
    on conflict (relay_id) do update
   set destinations = excluded.destinations, reachable = excluded.reachable, asleep = excluded.asleep,
       expires_at = excluded.expires_at, lease = excluded.lease, labels = excluded.labels

-- name: lanes_create
-- Create the rows of lanes that are used for the first time.
insert into pillarbox_lane (destination, partition)
select :destination, value from json_each(:partitions)
 where true
    on conflict (destination, partition) do nothing

-- name: lane_change
-- Raise the revision of a lane in which an operator changes open messages. A claim locks its lanes too: this waits for
-- one that is not committed, and a later one sees the new revision.
insert into pillarbox_lane (destination, partition, revision) values (:destination, :partition, 1)
    on conflict (destination, partition) do update set revision = revision + 1

-- name: lanes_free
-- Those of the lanes that nobody alive owns, or that are the relay's own.
select l.partition, l.relay_id
  from pillarbox_lane as l
 where l.destination = :destination and l.partition in :partitions
   and (l.relay_id is null or l.relay_id = :relay_id
        or not exists (
            select 1 from pillarbox_relay as r
             where r.relay_id = l.relay_id and r.expires_at > :now and r.expires_at <= :now + coalesce(r.lease, :lease)))

-- name: relay_pin
-- A relay in the registry. The whole file is locked: it cannot leave before the commit.
select relay_id from pillarbox_relay where relay_id = :relay_id

-- name: relays_lock
-- Those of the relays that are in the registry. The whole file is locked, so none is being written.
select relay_id from pillarbox_relay where relay_id in :relay_ids
