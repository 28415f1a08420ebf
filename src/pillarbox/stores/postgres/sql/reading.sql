-- name: read
-- Fresh messages of the lanes above their marks, those that became visible late below them, the snapshot of both, and
-- when the server was started: behind a pooler a failover keeps the connection, and the marks are those of another server.
-- $1 destination, $2 partitions, $3 their marks, $4 limit per lane, $5 limit of fresh ones, $6 transactions that were
-- in progress at the previous read, $7 the first that had not begun, $8 the highest mark, $9 limit of late ones,
-- $10 keys to skip. With those, the highest fresh id of each lane comes too, in a row without a destination.
-- $11 limit of bytes: fresh ones end with the one that reaches it; late ones that reach it do not come, and their number
-- is the highest. The size of a payload is known without fetching it.
-- The indexes hold id + 0, and the place in a lane, which is partition << 57 plus the id. A transaction that is still in
-- progress is not looked for: its rows cannot be seen.
with lanes as materialized (
    select partition, low, (partition::bigint << 57) + low as place, (partition::bigint << 57) + 144115188075855871 as last
      from unnest($2::smallint[], $3::bigint[]) as l (partition, low)
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
                             where o.destination = $1 and (o.partition::bigint << 57) + o.id > lanes.place
                               and (o.partition::bigint << 57) + o.id <= lanes.last and o.waits is null
                               and (o.key is null or o.key <> all($10::text[]))
                             order by o.destination, (o.partition::bigint << 57) + o.id
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
             where o.destination = $1 and (o.partition::bigint << 57) + o.id > lanes.place
               and (o.partition::bigint << 57) + o.id <= lanes.last and o.waits is null
             order by o.destination desc, (o.partition::bigint << 57) + o.id desc
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

-- name: peek
-- What the lanes of many destinations have, as read and find_due would see it: the snapshot and the server's start, then
-- the destinations with fresh or late messages, those with due ones, and those with keys that may be blocked. The last two
-- are looked for in a destination as a whole first: most have nothing that waits. Late ones of lanes that were not asked
-- for may come too. $1 destinations, $2 partitions and $3 marks of the lanes, $4 transactions that were in progress at one
-- of the previous reads, $5 the first that had not begun, $6 the highest mark, $7 limit of late ones, $8 the
-- destinations, each once, $9 now or null
with lanes as materialized (
    select destination, partition, low from unnest($1::text[], $2::smallint[], $3::bigint[]) as l (destination, partition, low)
), names as materialized (
    select name from unnest($8::text[]) as n (name)
), late as materialized (
    (select o.destination
       from unnest($4::xid8[]) as then_open (tx)
      cross join lateral (
             select o.destination from pillarbox_outbox o
              where o.tx = then_open.tx and o.id + 0 <= $6::bigint and o.waits is null
              order by o.tx, o.id + 0
              limit $7
            ) o
      where pg_visible_in_snapshot(then_open.tx, pg_current_snapshot())
      limit $7)
    union all
    (select destination from pillarbox_outbox
      where tx >= $5::xid8 and id + 0 <= $6::bigint and waits is null
      order by tx, id + 0
      limit $7)
), waiting as materialized (
    select names.name
      from names
     cross join lateral (
            select 1 from pillarbox_outbox o
             where o.destination = names.name and o.waits in ('deferred', 'retry')
             order by o.destination, o.partition, o.available_at, o.id
             limit 1
           ) o
)
select 'snapshot' as kind, pg_current_snapshot()::text as name, pg_postmaster_start_time(), (select count(*) from late)
union all
select 'late', destination, null, null from late
union all
select 'fresh', lanes.destination, null, null
  from lanes
 cross join lateral (
        select 1 from pillarbox_outbox o
         where o.destination = lanes.destination and (o.partition::bigint << 57) + o.id > (lanes.partition::bigint << 57) + lanes.low
           and (o.partition::bigint << 57) + o.id <= (lanes.partition::bigint << 57) + 144115188075855871 and o.waits is null
         order by o.destination, (o.partition::bigint << 57) + o.id
         limit 1
       ) o
union all
select 'due', lanes.destination, null, null
  from lanes
  join waiting on waiting.name = lanes.destination
 cross join lateral (
        select 1 from pillarbox_outbox o
         where o.destination = lanes.destination and o.partition = lanes.partition and o.waits in ('deferred', 'retry')
           and o.available_at <= coalesce($9::timestamptz, statement_timestamp())
         order by o.destination, o.partition, o.available_at, o.id
         limit 1
       ) o
union all
select 'blocked', names.name, null, null
  from names
 cross join lateral (
        select 1 from pillarbox_outbox o
         where o.destination = names.name and o.waits in ('retry', 'parked', 'held')
         order by o.destination, o.partition, o.key, o.id + 0
         limit 1
       ) o

-- name: last_id
-- The id that was drawn last; null if none was, or this login may not see it. $1 table
select case when has_sequence_privilege(counter, 'select,usage') then pg_sequence_last_value(counter) end
  from (select pg_get_serial_sequence($1, 'id')::regclass::oid as counter) c

-- name: lanes_done
-- Where the first read of a lane may begin, and whether the sequence went back below the mark: the mark is above the last
-- id that was drawn, or above the id of the first message of a transaction that began after the mark was made.
-- Marks of a server that had come further than this one do not count. $1 destination, $2 partitions, $3 table
select l.partition, l.done_to,
       has_sequence_privilege(s.counter, 'select,usage') and l.done_to > coalesce(pg_sequence_last_value(s.counter), 0)
       or l.done_to >= (select id from pillarbox_outbox where tx >= l.done_tx and waits is null order by tx, id + 0 limit 1)
  from pillarbox_lane l
 cross join (select pg_get_serial_sequence($3, 'id')::regclass::oid as counter) s
 where l.destination = $1 and l.partition = any($2::smallint[]) and l.done_to > 0
   and l.done_tx <= pg_snapshot_xmax(pg_current_snapshot())

-- name: lanes_unmark
-- Removes marks that the sequence went back below. Once it has passed them, they would skip messages. $1 table
update pillarbox_lane l set done_to = 0, done_tx = null
  from (select pg_get_serial_sequence($1, 'id')::regclass::oid as counter) s
 where l.done_to > 0
   and (has_sequence_privilege(s.counter, 'select,usage') and l.done_to > coalesce(pg_sequence_last_value(s.counter), 0)
        or l.done_to >= (select id from pillarbox_outbox where tx >= l.done_tx and waits is null order by tx, id + 0 limit 1))
returning l.destination, l.partition

-- name: inspect_server
-- A transaction that begins now, the start of the server, and the last id that was drawn. $1 table
select pg_current_xact_id()::text, pg_postmaster_start_time(),
       case when has_sequence_privilege(counter, 'select,usage') then coalesce(pg_sequence_last_value(counter), 0) end
  from (select pg_get_serial_sequence($1, 'id')::regclass::oid as counter) c

-- name: lanes_find_done
-- How far each lane of a relay has nothing fresh, up to an id at most, if every transaction has ended that began before a
-- message of that id was read: only those can have drawn the id, or an earlier one. $1 relay, $2 the id, $3 a transaction
-- that began after it was read, $4 ids that a mark must win
select l.destination, l.partition, coalesce(fresh.id - 1, $2::bigint)
  from pillarbox_lane l
  left join lateral (
        select o.id from pillarbox_outbox o
         where o.destination = l.destination and (o.partition::bigint << 57) + o.id > (l.partition::bigint << 57) + l.done_to
           and (o.partition::bigint << 57) + o.id <= (l.partition::bigint << 57) + $2::bigint and o.waits is null
         order by o.destination, (o.partition::bigint << 57) + o.id
         limit 1
       ) fresh on true
 where l.relay_id = $1 and l.done_to <= $2::bigint - $4::bigint
   and pg_snapshot_xmin(pg_current_snapshot()) >= $3::xid8
   and coalesce(fresh.id - 1, $2::bigint) >= l.done_to + $4::bigint

-- name: lanes_mark_done
-- Marks these lanes. A lane that a relay is writing in is left for another time. $1 destinations, $2 partitions, $3 their
-- ids, $4 a transaction that began after they were read, $5 the start of the server that they were read from, $6 table.
-- A pooler may have changed the server since: then nothing is marked.
with free as materialized (
    select l.destination, l.partition, d.id
      from unnest($1::text[], $2::smallint[], $3::bigint[]) as d (destination, partition, id)
      join pillarbox_lane l on l.destination = d.destination and l.partition = d.partition
       for no key update of l skip locked
)
update pillarbox_lane l set done_to = free.id, done_tx = $4::xid8
  from free
 cross join (select pg_get_serial_sequence($6, 'id')::regclass::oid as counter) s
 where l.destination = free.destination and l.partition = free.partition and l.done_to < free.id
   and pg_postmaster_start_time() = $5::timestamptz
   and (not has_sequence_privilege(s.counter, 'select,usage') or free.id <= coalesce(pg_sequence_last_value(s.counter), 0))

-- name: find_due
-- Deferred and retrying messages of the lanes whose time has come, of each lane the longest due beyond its mark. No payload
-- is fetched.
-- $1 destination, $2 partitions, $3 and $4 times and ids of their marks, $5 limit per lane, $6 now or null
select o.id, o.partition, o.key, o.waits, o.available_at, octet_length(o.payload)
  from unnest($2::smallint[], $3::timestamptz[], $4::bigint[]) as l (partition, at, id)
 cross join lateral (
        select * from pillarbox_outbox o
         where o.destination = $1 and o.partition = l.partition and o.waits in ('deferred', 'retry')
           and (o.available_at, o.id) > (coalesce(l.at, '-infinity'), l.id)
           and o.available_at <= coalesce($6::timestamptz, statement_timestamp())
         order by o.destination, o.partition, o.available_at, o.id
         limit $5
       ) o

-- name: read_due
-- The due messages that were found. An operator may have changed some since. $1 ids, $2 destination, $3 now or null
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at
  from pillarbox_outbox
 where id = any($1::bigint[]) and destination = $2 and waits in ('deferred', 'retry')
   and available_at <= coalesce($3::timestamptz, statement_timestamp())

-- name: read_keys
-- The first blocked messages of each key, by id.
-- $1 destination, $2 partitions, $3 keys, $4 limit per key, $5 limit, $6 limit of bytes
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity'), waits, attempts,
       last_error, status_at
  from (
        select o.*, sum(octet_length(o.payload)) over (rows between unbounded preceding and 1 preceding) as before
          from (
                select o.*
                  from unnest($2::smallint[], $3::text[]) as k (partition, key)
                 cross join lateral (
                        select * from pillarbox_outbox o
                         where o.destination = $1 and o.partition = k.partition and o.key = k.key
                           and o.waits in ('retry', 'parked', 'held')
                         order by o.destination, o.partition, o.key, o.id + 0
                         limit $4
                       ) o
                 limit $5
               ) o
       ) o
 where o.before is null or o.before < $6::bigint

-- name: blocked_keys
-- Each key with a blocked message, once, and what its first one waits for: one probe of the index per key, however many
-- wait behind it. $1 destination, $2 partitions
with recursive blocked as (
    select l.partition, front.key, front.waits
      from unnest($2::smallint[]) as l (partition)
     cross join lateral (
            select o.key, o.waits from pillarbox_outbox o
             where o.destination = $1 and o.partition = l.partition and o.waits in ('retry', 'parked', 'held') and o.key is not null
             order by o.destination, o.partition, o.key, o.id + 0
             limit 1
           ) front
    union all
    select b.partition, front.key, front.waits
      from blocked b
     cross join lateral (
            select o.key, o.waits from pillarbox_outbox o
             where o.destination = $1 and o.partition = b.partition and o.waits in ('retry', 'parked', 'held') and o.key > b.key
             order by o.destination, o.partition, o.key, o.id + 0
             limit 1
           ) front
)
select partition, key, waits from blocked

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
