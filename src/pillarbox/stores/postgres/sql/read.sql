-- Fresh messages of the lanes above their marks, those that became visible late below them, and the snapshot of both.
-- $1 destination, $2 partitions, $3 their marks, $4 limit per lane, $5 limit of fresh ones, $6 transactions that were
-- in progress at the previous read, $7 the first that had not begun, $8 the highest mark, $9 limit of late ones,
-- $10 keys to skip. With those, the highest fresh id of each lane comes too, in a row without a destination.
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
), fresh as (
    select o.*
      from lanes
     cross join lateral (
            select * from pillarbox_outbox o
             where o.destination = $1 and o.partition = lanes.partition and o.id + 0 > lanes.low and o.waits is null
               and (o.key is null or o.key <> all($10::text[]))
             order by o.destination, o.partition, o.id + 0
             limit $4
           ) o
     limit $5
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
       null::text, null::timestamptz, null::timestamptz, null::timestamptz, null::text,
       (select count(*) from late)::integer as attempts, null::text, null::timestamptz
union all
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at
  from fresh
union all
select o.id, message_id, destination, o.partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at
  from late o join lanes on lanes.partition = o.partition and o.id <= lanes.low
 where o.destination = $1
union all
select id, null, null, partition, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
       null, null, null
  from highest
