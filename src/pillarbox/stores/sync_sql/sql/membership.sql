-- name: renew
-- Extend the lease of a relay that has not expired.
update pillarbox_relay
   set expires_at = :now + :lease, lease = :lease, reachable = :reachable, asleep = :asleep
 where relay_id = :relay_id and expires_at > :now

-- name: relays_live
-- The live relays: not expired, and not expiring later than their own lease from now, which a wrong clock would write.
-- A row without a lease of its own is judged by the caller's. Labels that no relay wrote may be of any size.
select relay_id, service, host, pid, version, destinations, reachable, asleep, started_at, expires_at, lease,
       case when length(labels) <= 65536 then labels end
  from pillarbox_relay
 where expires_at > :now and expires_at <= :now + coalesce(lease, :lease)
 order by relay_id

-- name: relays_digest
-- The live relays and what each reaches: for a look whether the registry has changed.
select relay_id, reachable
  from pillarbox_relay
 where expires_at > :now and expires_at <= :now + coalesce(lease, :lease)
 order by relay_id

-- name: lanes_digest
-- How many lanes have an owner, and the sum of epochs, which every take raises.
select count(relay_id), sum(epoch % 1000003) from pillarbox_lane

-- name: lanes_owned
-- The lanes that have an owner, live or not.
select destination, `partition`, relay_id from pillarbox_lane where relay_id is not null

-- name: lanes_take
-- Set a new owner and raise the epoch: the fence of the previous owner fails from now on.
update pillarbox_lane set relay_id = :relay_id, epoch = epoch % 4611686018427387904 + 1
 where destination = :destination and `partition` in :partitions

-- name: lanes_release
-- Give up a lane if this relay still owns it at this epoch.
update pillarbox_lane set relay_id = null
 where destination = :destination and `partition` = :partition and relay_id = :relay_id and epoch = :epoch

-- name: lanes_leave
-- Give up every lane of a relay that leaves.
update pillarbox_lane set relay_id = null where relay_id = :relay_id

-- name: relays_remove
-- Delete expired relays whose lanes were taken over.
delete from pillarbox_relay where relay_id in :relay_ids

-- name: relays_leave
-- Delete a relay that leaves.
delete from pillarbox_relay where relay_id = :relay_id

-- name: relays_forget
-- Delete relays that expired so long ago.
delete from pillarbox_relay where expires_at <= :now - :stale_after
