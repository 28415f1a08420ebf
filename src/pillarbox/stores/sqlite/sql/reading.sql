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
-- Deferred and retrying messages of the lanes whose time has come, longest due first. Finds the ids before it fetches.
with due as materialized (
    select d.id, d.available_at
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
)
select m.id, m.message_id, m.destination, m.partition, m.kind, m.type, m.topic, m.key, m.payload, m.content_type, m.headers,
       m.source, m.subject, m.correlation_id, m.causation_id, m.event_time, m.created_at, m.available_at, m.waits,
       m.attempts, m.last_error, m.status_at
  from due
 cross join pillarbox_outbox as m on m.id = due.id
 order by due.available_at, due.id

-- name: read_key
-- The blocked messages of one key, by id.
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at
  from pillarbox_outbox
 where destination = :destination and partition = :partition and key = :key and id > :after
   and waits in ('retry', 'parked', 'held')
 order by id
 limit :limit

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
