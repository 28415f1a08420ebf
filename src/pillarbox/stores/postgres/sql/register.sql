-- Enters a relay into the registry. $1 relay, $2 service, $3 host, $4 pid, $5 version, $6 destinations, $7 reachable,
-- $8 asleep, $9 lease, $10 now or null
insert into pillarbox_relay (relay_id, service, host, pid, version, destinations, reachable, asleep, started_at, expires_at)
select $1, $2, $3, $4, $5, $6, $7, $8, now, now + $9::interval
  from (select coalesce($10::timestamptz, statement_timestamp()) as now) c
    on conflict (relay_id) do update set expires_at = excluded.expires_at, destinations = excluded.destinations,
       reachable = excluded.reachable, asleep = excluded.asleep
