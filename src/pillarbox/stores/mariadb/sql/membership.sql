-- name: register
-- Enter a relay into the registry, alive for one lease.
insert into pillarbox_relay (
       relay_id, service, host, pid, version, destinations, reachable, asleep, started_at, expires_at, lease, labels)
values (:relay_id, :service, :host, :pid, :version, :destinations, :reachable, :asleep, :now, :now + :lease, :lease,
       :labels)
    on duplicate key update destinations = values(destinations), reachable = values(reachable), asleep = values(asleep),
       expires_at = values(expires_at), lease = values(lease), labels = values(labels)

-- name: lanes_create
-- Create the rows of lanes that are used for the first time. It looks for them first: an insert would lock existing
-- rows.
insert ignore into pillarbox_lane (destination, `partition`)
with recursive every (number) as (select 0 union all select number + 1 from every where number < 63)
select :destination, number from every
 where number in :partitions
   and not exists (select 1 from pillarbox_lane as l where l.destination = :destination and l.`partition` = number)

-- name: lane_change
-- Raise the revision of a lane in which an operator changes open messages. A claim locks its lanes too: this waits for
-- one that is not committed, and a later one sees the new revision.
insert into pillarbox_lane (destination, `partition`, revision) values (:destination, :partition, 1)
    on duplicate key update revision = revision + 1

-- name: lanes_free
-- Those of the lanes that nobody alive owns, or that are the relay's own, locked. What another relay is taking or
-- writing in is passed over.
select l.`partition`, l.relay_id
  from pillarbox_lane as l
 where l.destination = :destination and l.`partition` in :partitions
   and (l.relay_id is null or l.relay_id = :relay_id
        or not exists (
            select 1 from pillarbox_relay as r
             where r.relay_id = l.relay_id and r.expires_at > :now and r.expires_at <= :now + coalesce(r.lease, :lease)))
 order by l.`partition`
   for update skip locked

-- name: relay_pin
-- A relay in the registry, locked: it cannot leave before the commit.
select relay_id from pillarbox_relay where relay_id = :relay_id
   for update

-- name: relays_lock
-- Those of the relays that are in the registry, locked. A row that its relay is writing is passed over.
select relay_id from pillarbox_relay where relay_id in :relay_ids
   for update skip locked
