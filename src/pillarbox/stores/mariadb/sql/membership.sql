-- name: register
-- Enter a relay into the registry, alive for one lease.
insert into pillarbox_relay (
       relay_id, service, host, pid, version, destinations, reachable, asleep, started_at, expires_at)
values (:relay_id, :service, :host, :pid, :version, :destinations, :reachable, :asleep, :now, :now + :lease)
    on duplicate key update destinations = values(destinations), reachable = values(reachable), asleep = values(asleep),
       expires_at = values(expires_at)

-- name: lanes_create
-- Create the rows of lanes that are used for the first time. It looks for them first: an insert would lock existing
-- rows.
insert ignore into pillarbox_lane (destination, `partition`)
with recursive every (number) as (select 0 union all select number + 1 from every where number < 63)
select :destination, number from every
 where number in :partitions
   and not exists (select 1 from pillarbox_lane as l where l.destination = :destination and l.`partition` = number)

-- name: lanes_free
-- Those of the lanes that nobody alive owns, or that are the relay's own, locked. What another relay is taking or
-- writing in is passed over.
select l.`partition`, l.relay_id
  from pillarbox_lane as l
 where l.destination = :destination and l.`partition` in :partitions
   and (l.relay_id is null or l.relay_id = :relay_id
        or not exists (
            select 1 from pillarbox_relay as r
             where r.relay_id = l.relay_id and r.expires_at > :now and r.expires_at <= :now + :lease))
 order by l.`partition`
   for update skip locked
