-- name: read_ahead
-- The ids of the next fresh messages of each lane above its mark, from the index alone, as one JSON value.
-- `low` is a JSON object from partition to mark, in the order of turns.
select '[' || group_concat('[' || lane.key || ',' || (
    select json_group_array(id)
      from (select o.id from pillarbox_outbox as o
             where o.destination = :destination and o.partition = cast(lane.key as integer) and o.id > lane.value
               and o.waits is null
             order by o.id
             limit :limit)
) || ',0]') || ']'
  from json_each(:low) as lane

-- name: read_ahead_skipping
-- Like read_ahead, without the keys to skip, and with the highest id of each lane above its mark.
select '[' || group_concat('[' || lane.key || ',' || (
    select json_group_array(id)
      from (select o.id from pillarbox_outbox as o
             where o.destination = :destination and o.partition = cast(lane.key as integer) and o.id > lane.value
               and o.waits is null
               and (o.key is null or o.key not in :skip)
             order by o.id
             limit :limit)
) || ',' || coalesce((
    select max(o.id) from pillarbox_outbox as o
     where o.destination = :destination and o.partition = cast(lane.key as integer) and o.id > lane.value
       and o.waits is null
), 0) || ']') || ']'
  from json_each(:low) as lane

-- name: read_packed
-- The messages that were chosen by id, in id order, in one row: the columns of `read` as JSON with the length of each
-- payload in its place, and the payloads. In a database that is not in UTF-8 bytes would be taken for text.
select cast(json_group_array(json_array(
           id, message_id, destination, partition, kind, type, topic, key,
           case typeof(payload) when 'blob' then length(payload) end, content_type, headers, source, subject,
           correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at))
           as blob),
       case (select encoding from pragma_encoding) when 'UTF-8' then cast(group_concat(payload, '') as blob) end
  from (select * from pillarbox_outbox where id in :ids order by id)

-- name: peek
-- Whether the lanes of a destination have anything fresh or due, and anything that blocks a key: a few probes per lane.
select :number,
       exists (select 1 from pillarbox_outbox
                where destination = :destination and partition in :partitions and waits is null)
       or exists (select 1 from pillarbox_outbox
                   where destination = :destination and partition in :partitions and waits in ('deferred', 'retry')
                     and available_at <= :now),
       exists (select 1 from pillarbox_outbox
                where destination = :destination and partition in :partitions and key is not null
                  and waits in ('retry', 'parked', 'held'))

-- name: find_due
-- Deferred and retrying messages of one lane whose time has come, the longest due beyond the mark.
select id, partition, key, waits, available_at, coalesce(length(payload), 0)
  from pillarbox_outbox
 where destination = :destination and partition = :partition and waits in ('deferred', 'retry')
   and (available_at, id) > (:after, :after_id) and available_at <= :now
 order by available_at, id
 limit :limit

-- name: read_due
-- The due messages that were found, in id order. An operator may have changed some since. A plus keeps SQLite from walking
-- an index over all that wait.
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at
  from pillarbox_outbox
 where id in :ids and +destination = :destination and +waits in ('deferred', 'retry') and available_at <= :now
 order by id

-- name: find_blocked
-- The first blocked messages of one key, by id, under the number of the key: ids and sizes alone.
select :number, id, coalesce(length(payload), 0)
  from pillarbox_outbox
 where destination = :destination and partition = :partition and key = cast(:key as text)
   and waits in ('retry', 'parked', 'held')
 order by id
 limit :limit

-- name: find_blocked_of_keys
-- find_blocked for many keys, as one JSON value. `keys` is a JSON array of partitions and keys.
select '[' || coalesce(group_concat((
    select group_concat('[' || wanted.key || ',' || id || ',' || size || ']')
      from (select o.id, coalesce(length(o.payload), 0) as size from pillarbox_outbox as o
             where o.destination = :destination and o.partition = json_extract(wanted.value, '$[0]')
               and o.key = cast(json_extract(wanted.value, '$[1]') as text) and o.waits in ('retry', 'parked', 'held')
             order by o.id
             limit :limit)
)), '') || ']'
  from json_each(:keys) as wanted

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
