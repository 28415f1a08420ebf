-- name: read_ahead
-- The ids and sizes of the first fresh messages of each lane, from its start. No transaction's own number is asked for: not
-- every server has one. $1 destination, $2 partitions, $3 limit per lane
select o.partition, o.id, o.size
  from unnest($2::smallint[]) as l (partition)
 cross join lateral (
        select o.partition, o.id, octet_length(o.payload) as size
          from pillarbox_outbox o
         where o.destination = $1 and (o.partition::bigint << 57) + o.id > l.partition::bigint << 57
           and (o.partition::bigint << 57) + o.id <= (l.partition::bigint << 57) + 144115188075855871 and o.waits is null
         order by o.destination, (o.partition::bigint << 57) + o.id
         limit $3
       ) o

-- name: read_ids
-- The fresh messages that were found. An operator may have let one of them wait since. $1 ids
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at
  from pillarbox_outbox
 where id = any($1::bigint[]) and waits is null

-- name: peek
-- The destinations whose lanes have something fresh or due, and those with keys that may be blocked. $1 destinations and
-- $2 partitions of the lanes, $3 the destinations, each once, $4 now or null
with lanes as (
    select destination, partition from unnest($1::text[], $2::smallint[]) as l (destination, partition)
)
select 'fresh' as kind, lanes.destination
  from lanes
 where exists (select 1 from pillarbox_outbox o
                where o.destination = lanes.destination and o.partition = lanes.partition and o.waits is null)
union all
select 'due', lanes.destination
  from lanes
 where exists (select 1 from pillarbox_outbox o
                where o.destination = lanes.destination and o.partition = lanes.partition
                  and o.waits in ('deferred', 'retry')
                  and o.available_at <= coalesce($4::timestamptz, statement_timestamp()))
union all
select 'blocked', names.name
  from unnest($3::text[]) as names (name)
 where exists (select 1 from pillarbox_outbox o
                where o.destination = names.name and o.waits in ('retry', 'parked', 'held'))
