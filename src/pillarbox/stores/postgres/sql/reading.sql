-- name: read
-- Fresh messages of the lanes above their marks, those that became visible late below them, the snapshot of both, and
-- when the server was started: behind a pooler a failover keeps the connection, and the marks are those of another server.
-- $1 destination, $2 partitions, $3 their marks, $4 limit per lane, $5 limit of fresh ones, $6 transactions that were
-- in progress at the previous read, $7 the first that had not begun, $8 the highest mark, $9 limit of late ones,
-- $10 keys to skip. With those, the highest fresh id of each lane comes too, in a row without a destination.
-- $11 limit of bytes: fresh ones end with the one that reaches it; late ones that reach it do not come, and their number
-- is the highest. The size of a payload is known without fetching it.
-- id + 0 is what the indexes hold. A transaction that is still in progress is not looked for: its rows cannot be seen.
with lanes as materialized (
    select partition, low from unnest($2::smallint[], $3::bigint[]) as l (partition, low)
), late as materialized (
    (select o.*
       from unnest($6::xid8[]) as then_open (tx)
      cross join lateral (
             select * from pillarbox_outbox o
              where o.tx = then_open.tx and o.id + 0 <= $8::bigint and o.waits is null
              order by o.tx, o.id + 0
              limit $9
            ) o
      where pg_visible_in_snapshot(then_open.tx, pg_current_snapshot())
      limit $9)
    union all
    (select * from pillarbox_outbox
      where tx >= $7::xid8 and id + 0 <= $8::bigint and waits is null
      order by tx, id + 0
      limit $9)
), late_here as materialized (
    select o.* from late o join lanes on lanes.partition = o.partition and o.id <= lanes.low
     where o.destination = $1
), too_large as materialized (
    select count(*) > 1 and sum(octet_length(payload)) >= $11::bigint as late from late_here
), fresh as (
    select *
      from (
            select o.*, sum(octet_length(o.payload)) over (rows between unbounded preceding and 1 preceding) as before
              from (
                    select o.*
                      from lanes
                     cross join lateral (
                            select * from pillarbox_outbox o
                             where o.destination = $1 and o.partition = lanes.partition and o.id + 0 > lanes.low
                               and o.waits is null
                               and (o.key is null or o.key <> all($10::text[]))
                             order by o.destination, o.partition, o.id + 0
                             limit $4
                           ) o
                     limit $5
                   ) o
           ) o
     where o.before is null or o.before < $11::bigint
), highest as (
    select lanes.partition, o.id
      from lanes
     cross join lateral (
            select o.id from pillarbox_outbox o
             where o.destination = $1 and o.partition = lanes.partition and o.id + 0 > lanes.low and o.waits is null
             order by o.destination desc, o.partition desc, o.id + 0 desc
             limit 1
           ) o
     where cardinality($10::text[]) > 0
)
select null::bigint as id, null::uuid as message_id, pg_current_snapshot()::text as destination, null::smallint, null::text,
       null::text, null::text, null::text, null::bytea, null::text, null::jsonb, null::text, null::text, null::text,
       null::text, pg_postmaster_start_time(), null::timestamptz, null::timestamptz, null::text,
       case when (select late from too_large) then 2147483647 else (select count(*) from late)::integer end as attempts, null::text, null::timestamptz
union all
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at
  from fresh
union all
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at
  from late_here
 where not (select late from too_large)
union all
select id, null, null, partition, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
       null, null, null
  from highest

-- name: due_ahead
-- Deferred and retrying messages of the lanes whose time has come, of each lane the longest due: only ids and sizes.
-- $1 destination, $2 partitions, $3 now or null, $4 limit, $5 ids to leave out
select o.available_at, o.id, octet_length(o.payload)
  from unnest($2::smallint[]) as l (partition)
 cross join lateral (
        select * from pillarbox_outbox o
         where o.destination = $1 and o.partition = l.partition and o.waits in ('deferred', 'retry')
           and o.available_at <= coalesce($3::timestamptz, statement_timestamp())
           and o.id <> all($5::bigint[])
         order by o.destination, o.partition, o.available_at, o.id
         limit $4
       ) o

-- name: read_due
-- The due messages that were chosen. An operator may have changed some since. $1 ids, $2 destination, $3 now or null
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at
  from pillarbox_outbox
 where id = any($1::bigint[]) and destination = $2 and waits in ('deferred', 'retry')
   and available_at <= coalesce($3::timestamptz, statement_timestamp())

-- name: read_key
-- The blocked messages of one key, by id. $1 destination, $2 partition, $3 key, $4 above this id, $5 limit, $6 limit of bytes
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity'), waits, attempts,
       last_error, status_at
  from (
        select o.*, sum(octet_length(o.payload)) over (rows between unbounded preceding and 1 preceding) as before
          from (
                select * from pillarbox_outbox
                 where destination = $1 and partition = $2 and key = $3 and id + 0 > $4
                   and waits in ('retry', 'parked', 'held')
                 order by destination, partition, key, id + 0
                 limit $5
               ) o
       ) o
 where o.before is null or o.before < $6::bigint

-- name: blocked_keys
-- Each key with a blocked message, once, and what its first one waits for: two probes of the index per key, however
-- many wait behind it.
-- $1 destination, $2 partitions
with recursive blocked as (
    select l.partition, (
        select min(o.key) from pillarbox_outbox o
         where o.destination = $1 and o.partition = l.partition and o.waits in ('retry', 'parked', 'held')
    ) as key
      from unnest($2::smallint[]) as l (partition)
    union all
    select b.partition, (
        select min(o.key) from pillarbox_outbox o
         where o.destination = $1 and o.partition = b.partition and o.waits in ('retry', 'parked', 'held') and o.key > b.key
    )
      from blocked b
     where b.key is not null
)
select b.partition, b.key, front.waits
  from blocked b
 cross join lateral (
        select o.waits from pillarbox_outbox o
         where o.destination = $1 and o.partition = b.partition and o.key = b.key
           and o.waits in ('retry', 'parked', 'held')
         order by o.destination, o.partition, o.key, o.id + 0
         limit 1
       ) front
 where b.key is not null

-- name: next_due
-- When the next deferred or retrying message of the lanes comes due. $1 destination, $2 partitions
select min(o.available_at)
  from unnest($2::smallint[]) as l (partition)
 cross join lateral (
        select available_at from pillarbox_outbox o
         where o.destination = $1 and o.partition = l.partition and o.waits in ('deferred', 'retry')
         order by o.destination, o.partition, o.available_at, o.id
         limit 1
       ) o
