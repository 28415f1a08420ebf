-- name: read_ahead
-- The ids of the next fresh messages of each lane above its mark, from the index alone.
-- `low` is a JSON object from partition to mark, in the order of turns.
select cast(lane.key as integer), (
    select json_group_array(id)
      from (select o.id from pillarbox_outbox as o
             where o.destination = :destination and o.partition = cast(lane.key as integer) and o.id > lane.value
               and o.waits is null
             order by o.id
             limit :limit)
), 0
  from json_each(:low) as lane

-- name: read_ahead_skipping
-- Like read_ahead, without the keys to skip, and with the highest id of each lane above its mark.
select cast(lane.key as integer), (
    select json_group_array(id)
      from (select o.id from pillarbox_outbox as o
             where o.destination = :destination and o.partition = cast(lane.key as integer) and o.id > lane.value
               and o.waits is null
               and (o.key is null or o.key not in :skip)
             order by o.id
             limit :limit)
), (
    select max(o.id) from pillarbox_outbox as o
     where o.destination = :destination and o.partition = cast(lane.key as integer) and o.id > lane.value
       and o.waits is null
)
  from json_each(:low) as lane

-- name: read_due
-- Deferred and retrying messages of the lanes whose time has come, longest due first, up to the one that reaches the
-- limit of bytes. Finds the ids before it fetches.
with due as materialized (
    select d.id, d.available_at, length(d.payload) as size
      from json_each(:partitions) as lane
     cross join pillarbox_outbox as d
        on d.id in (
            select o.id from pillarbox_outbox as o
             where o.destination = :destination and o.partition = lane.value and o.waits in ('deferred', 'retry')
               and o.available_at <= :now
               and o.id not in :skip
             order by o.available_at, o.id
             limit :limit
           )
     order by d.available_at, d.id
     limit :limit
), chosen as materialized (
    select id, available_at,
           sum(size) over (order by available_at, id rows between unbounded preceding and 1 preceding) as size_before
      from due
)
select m.id, m.message_id, m.destination, m.partition, m.kind, m.type, m.topic, m.key, m.payload, m.content_type, m.headers,
       m.source, m.subject, m.correlation_id, m.causation_id, m.event_time, m.created_at, m.available_at, m.waits,
       m.attempts, m.last_error, m.status_at
  from chosen
 cross join pillarbox_outbox as m on m.id = chosen.id
 where chosen.size_before is null or chosen.size_before < :max_bytes
 order by chosen.available_at, chosen.id

-- name: read_key
-- The blocked messages of one key, by id, up to the one that reaches the limit of bytes. Finds the ids before it fetches.
select o.id, o.message_id, o.destination, o.partition, o.kind, o.type, o.topic, o.key, o.payload, o.content_type, o.headers, o.source, o.subject,
       o.correlation_id, o.causation_id, o.event_time, o.created_at, o.available_at, o.waits, o.attempts, o.last_error, o.status_at
  from (
        select id, sum(size) over (order by id rows between unbounded preceding and 1 preceding) as size_before
          from (
                select id, length(payload) as size from pillarbox_outbox
                 where destination = :destination and partition = :partition and key = cast(:key as text) and id > :after
                   and waits in ('retry', 'parked', 'held')
                 order by id
                 limit :limit
               ) as first
       ) as chosen
  join pillarbox_outbox as o on o.id = chosen.id
 where chosen.size_before is null or chosen.size_before < :max_bytes
 order by o.id

-- name: blocked_keys
-- Each key with a blocked message, once, and what the first of them waits for: two probes of the index per key,
-- however many wait behind it.
with recursive blocked (partition, key) as (
    select lane.value, (
        select o.key from pillarbox_outbox as o
         where o.destination = :destination and o.partition = lane.value and o.key is not null
           and o.waits in ('retry', 'parked', 'held')
         order by o.key
         limit 1
    )
      from json_each(:partitions) as lane
    union all
    select b.partition, (
        select o.key from pillarbox_outbox as o
         where o.destination = :destination and o.partition = b.partition and o.key > b.key
           and o.waits in ('retry', 'parked', 'held')
         order by o.key
         limit 1
    )
      from blocked as b
     where b.key is not null
)
select b.partition, b.key, (
    select o.waits from pillarbox_outbox as o
     where o.destination = :destination and o.partition = b.partition and o.key = b.key
       and o.waits in ('retry', 'parked', 'held')
     order by o.id
     limit 1
)
  from blocked as b
 where b.key is not null

-- name: next_due
-- When the next deferred or retrying message of the lanes comes due: one probe per lane.
select min((
    select o.available_at from pillarbox_outbox as o
     where o.destination = :destination and o.partition = lane.value and o.waits in ('deferred', 'retry')
     order by o.available_at
     limit 1
))
  from json_each(:partitions) as lane
