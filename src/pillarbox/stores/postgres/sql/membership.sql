-- name: register
-- Enters a relay into the registry. $1 relay, $2 service, $3 host, $4 pid, $5 version, $6 destinations, $7 reachable,
-- $8 asleep, $9 lease, $10 now or null, $11 labels or null. For those who sleep see renew.
with clock as materialized (
    select coalesce($10::timestamptz, statement_timestamp()) as now
), awake as (
    delete from pillarbox_sleeper where relay_id = $1 and not $8
), asleep as (
    insert into pillarbox_sleeper as s (relay_id, until)
    select $1, now + $9::interval + interval '1 minute' from clock where $8
        on conflict (relay_id) do update set until = excluded.until
)
insert into pillarbox_relay (
       relay_id, service, host, pid, version, destinations, reachable, asleep, started_at, expires_at, lease, labels)
select $1, $2, $3, $4, $5, $6, $7, $8, now, now + $9::interval, $9::interval, $11::text::jsonb
  from clock
    on conflict (relay_id) do update set expires_at = excluded.expires_at, lease = excluded.lease,
       destinations = excluded.destinations, reachable = excluded.reachable, asleep = excluded.asleep,
       labels = excluded.labels

-- name: renew
-- One more lease for a relay that is still alive. Writers notify one that sleeps for its lease and a minute more: so most
-- renewals leave that row alone, of which the writers' trigger would walk every dead version under a long transaction.
-- $1 relay, $2 lease, $3 reachable, $4 asleep, $5 now or null
with clock as materialized (
    select coalesce($5::timestamptz, statement_timestamp()) as now
), renewed as (
    update pillarbox_relay r
       set expires_at = clock.now + $2::interval, lease = $2::interval, reachable = $3, asleep = $4
      from clock
     where r.relay_id = $1 and r.expires_at > clock.now
    returning r.relay_id
), awake as (
    delete from pillarbox_sleeper where relay_id = $1 and not $4
), asleep as (
    insert into pillarbox_sleeper as s (relay_id, until)
    select $1, now + $2::interval + interval '1 minute' from clock, renewed where $4
        on conflict (relay_id) do update set until = excluded.until
     where s.until < excluded.until - interval '1 minute'
)
select relay_id from renewed

-- name: registry
-- The store's time, then the live relays, and then a row for each owner of lanes of a destination, live or not. Both
-- tables are read once: a look at the lanes for each relay would cost relays times lanes. Labels that no relay wrote may
-- be of any size. What a relay reaches is null where it is all that it serves. $1 now or null, $2 lease of a row that has none
with clock as materialized (
    select coalesce($1::timestamptz, statement_timestamp()) as now
)
select null::uuid as relay_id, null::text, null::text, null::integer, null::text, null::text[], null::text[], null::boolean, clock.now,
       null::timestamptz, null::interval, null::text, null::text as destination, null::smallint[] as partitions
  from clock
union all
select r.relay_id, r.service, r.host, r.pid, r.version, r.destinations, nullif(r.reachable, r.destinations), r.asleep, r.started_at,
       r.expires_at, r.lease, case when octet_length(r.labels::text) <= 65536 then r.labels::text end, null, null
  from clock
  join pillarbox_relay r on r.expires_at > clock.now and r.expires_at <= clock.now + coalesce(r.lease, $2::interval)
union all
select l.relay_id, null, null, null, null, null, null, null, null, null, null, null, l.destination, l.partitions
  from (
        select relay_id, destination, array_agg(partition) as partitions
          from pillarbox_lane
         where relay_id is not null
         group by relay_id, destination
       ) l

-- name: registry_digest
-- One row that is another when the registry is: which relays are alive and what each reaches; how many lanes have an
-- owner, and the sum of epochs, which every take raises. A thousand relays ask for it, and seldom for the registry.
-- $1 now or null, $2 lease of a row that has none
with clock as materialized (
    select coalesce($1::timestamptz, statement_timestamp()) as now
), live as (
    select count(*) as relays, coalesce(sum(hashtextextended(
               r.relay_id::text || case when r.reachable = r.destinations then '' else r.reachable::text end, 0)), 0) as hash
      from clock
      join pillarbox_relay r on r.expires_at > clock.now and r.expires_at <= clock.now + coalesce(r.lease, $2::interval)
), lanes as (
    select count(relay_id) as owned, coalesce(sum(epoch % 1000003), 0) as epochs from pillarbox_lane
)
select live.relays, live.hash::text, lanes.owned, lanes.epochs::text from live cross join lanes

-- name: relays_live
-- Which of these relays are alive. Asked under the lanes' locks with a snapshot of its own, so that a relay which took a
-- lane a moment ago is seen. $1 relays, $2 lease of a row that has none, $3 now or null
select relay_id from pillarbox_relay
 where relay_id = any($1::uuid[])
   and expires_at > coalesce($3::timestamptz, statement_timestamp())
   and expires_at <= coalesce($3::timestamptz, statement_timestamp()) + coalesce(lease, $2::interval)

-- name: relay_pin
-- Finds a relay in the registry and keeps it there to the commit: it cannot leave while it takes lanes. It can be renewed.
-- $1 relay
select relay_id from pillarbox_relay where relay_id = $1 for key share

-- name: lanes_create
-- Create the rows of lanes that are used for the first time. $1 destination, $2 partitions
insert into pillarbox_lane (destination, partition)
select $1, partition from unnest($2::smallint[]) as l (partition)
 order by partition
    on conflict (destination, partition) do nothing

-- name: lanes_lock
-- Locks lanes that may be free; what another relay is writing in or taking is passed over. $1 destination, $2 partitions
select partition, relay_id from pillarbox_lane
 where destination = $1 and partition = any($2::smallint[])
 order by partition
   for update skip locked

-- name: lanes_take
-- Set a new owner and raise the epoch. $1 relay, $2 destination, $3 partitions
update pillarbox_lane set relay_id = $1, epoch = epoch % 4611686018427387904 + 1
 where destination = $2 and partition = any($3::smallint[])
returning partition, epoch, revision

-- name: lanes_release
-- Gives lanes up, if they are still this relay's. $1 relay, $2 destination, $3 partitions, $4 their epochs
update pillarbox_lane l set relay_id = null
  from unnest($3::smallint[], $4::bigint[]) as f (partition, epoch)
 where l.destination = $2 and l.partition = f.partition and l.epoch = f.epoch and l.relay_id = $1
returning l.partition

-- name: relay_leave
-- Deletes a relay that leaves. It comes first: it waits for a take that is under way. $1 relay
with awake as (
    delete from pillarbox_sleeper where relay_id = $1
)
delete from pillarbox_relay where relay_id = $1

-- name: lanes_leave
-- Releases the lanes of a relay that leaves, and deletes its claims. A statement of its own sees what the take took.
-- $1 relay
with lanes as (
    update pillarbox_lane set relay_id = null where relay_id = $1
)
delete from pillarbox_claim where relay_id = $1

-- name: relays_forget
-- Removes relays that expired at least so long ago, or that expire too far ahead, as a wrong clock writes it.
-- $1 relays or null for all, $2 how long ago, $3 lease of a row that has none, or null: none expires too far ahead,
-- $4 now or null. A row that its relay is writing is passed over.
with stale as (
    select relay_id from pillarbox_relay
     where ($1::uuid[] is null or relay_id = any($1::uuid[]))
       and (expires_at <= coalesce($4::timestamptz, statement_timestamp()) - $2::interval
            or $3::interval is not null
               and expires_at > coalesce($4::timestamptz, statement_timestamp()) + coalesce(lease, $3::interval))
       for update skip locked
), awake as (
    delete from pillarbox_sleeper s using stale where s.relay_id = stale.relay_id
)
delete from pillarbox_relay r using stale where r.relay_id = stale.relay_id
