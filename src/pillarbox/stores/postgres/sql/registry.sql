-- The live relays, the lanes they own, and the store's time. $1 now or null, $2 lease
with clock as materialized (
    select coalesce($1::timestamptz, statement_timestamp()) as now
)
select clock.now, r.relay_id, r.service, r.host, r.pid, r.version, r.destinations, r.reachable, r.asleep, r.started_at, r.expires_at,
       (select json_object_agg(o.destination, o.partitions)
          from (select destination, array_agg(partition) as partitions
                  from pillarbox_lane where relay_id = r.relay_id group by destination) o)::text as owned
  from clock
  left join pillarbox_relay r on r.expires_at > clock.now and r.expires_at <= clock.now + $2::interval
