-- name: read_ahead
-- The ids of the first fresh messages of one lane above an id, from the index alone.
select :partition as lane, group_concat(id order by id) as ids
  from (select id from pillarbox_outbox
         where waits is null and destination = :destination and `partition` = :partition and available_at is null
           and id > :after
         order by id
         limit :limit) as first

-- name: find_skipped
-- Those fresh messages of a lane in a range whose keys are to be skipped. Compared as bytes: texts that differ in spaces at
-- their end count as equal here. The index is forced: by the primary key every other lane would be walked too.
select :partition as lane, group_concat(id order by id) as ids
  from pillarbox_outbox force index (pillarbox_outbox_waiting_idx)
 where waits is null and destination = :destination and `partition` = :partition and available_at is null
   and id >= :first and id <= :last and cast(`key` as binary) in :skip

-- name: check_block
-- How many fresh messages a range of ids in a lane has, and sums that tell whether they are those that are known.
select :partition as lane, :number as number, count(*) as count, coalesce(sum(id), 0) as total,
       coalesce(sum(crc32(id)), 0) as checksum
  from pillarbox_outbox
 where waits is null and destination = :destination and `partition` = :partition and available_at is null
   and id > :after and id <= :last

-- name: read_block
-- The ids of the fresh messages of a lane in a range.
select :partition as lane, :number as number, group_concat(id order by id) as ids
  from pillarbox_outbox
 where waits is null and destination = :destination and `partition` = :partition and available_at is null
   and id > :after and id <= :last

-- name: peek
-- Whether the lanes of a destination have anything fresh or due, and anything that blocks a key: a few probes per lane.
select :number as number,
       exists (select 1 from pillarbox_outbox
                where waits is null and destination = :destination and `partition` in :partitions and available_at is null)
       or exists (select 1 from pillarbox_outbox
                   where waits = 'deferred' and destination = :destination and `partition` in :partitions and available_at <= :now)
       or exists (select 1 from pillarbox_outbox
                   where waits = 'retry' and destination = :destination and `partition` in :partitions and available_at <= :now)
       as has_something,
       exists (select 1 from pillarbox_outbox
                where destination = :destination and `partition` in :partitions and blocked_key is not null) as has_blocked

-- name: due_kinds
-- The kinds of waiting messages that a destination has: most have none, and then no lane is searched.
select 'deferred' from (select 1) as one
 where exists (select 1 from pillarbox_outbox where waits = 'deferred' and destination = :destination)
union all
select 'retry' from (select 1) as one
 where exists (select 1 from pillarbox_outbox where waits = 'retry' and destination = :destination)

-- name: find_due
-- Waiting messages of one kind and lane whose time has come, the longest due beyond the mark.
(select id, `partition`, `key`, waits, available_at, length(payload) as size from pillarbox_outbox
  where waits = :waits and destination = :destination and `partition` = :partition and available_at <= :now
    and available_at >= :after and (available_at > :after or id > :after_id)
  order by available_at, id
  limit :limit)

-- name: read_due
-- The due messages that were found, in id order. An operator may have changed some since.
select id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at
  from pillarbox_outbox
 where id in :ids and destination = :destination and waits in ('deferred', 'retry') and available_at <= :now
 order by id

-- name: find_blocked
-- The first blocked messages of one key, by id, under the number of the key: ids and sizes alone.
select :number as number, id, size
  from (select id, length(payload) as size from pillarbox_outbox
         where destination = :destination and `partition` = :partition and blocked_key = :key
         order by id
         limit :limit) as first

-- name: find_few_blocked
-- The blocked messages of some keys of a lane, if they are few: a key with very many would hide the others.
(select `partition`, convert(blocked_key using utf8mb4) as name, id, length(payload) as size from pillarbox_outbox
  where destination = :destination and `partition` = :partition and blocked_key in :keys
  order by blocked_key, id
  limit :limit)

-- name: walk_blocked
-- The next blocked messages of a lane by key, from the index alone. The walk goes on behind the last key, however many
-- wait behind it.
(select `partition`, convert(blocked_key using utf8mb4) as name, id from pillarbox_outbox
  where destination = :destination and `partition` = :partition and blocked_key > :after
  order by blocked_key, id
  limit :limit)

-- name: fronts
-- What some messages wait for.
select id, waits from pillarbox_outbox where id in :ids

-- name: next_due
-- When the next deferred or retrying message of the lanes comes due: two probes per lane.
with recursive lane (number) as (
    select 0 union all select number + 1 from lane where number < 63
), due (at) as (
    select (select o.available_at from pillarbox_outbox as o
             where o.waits = 'deferred' and o.destination = :destination and o.`partition` = lane.number
             order by o.available_at limit 1)
      from lane where lane.number in :partitions
    union all
    select (select o.available_at from pillarbox_outbox as o
             where o.waits = 'retry' and o.destination = :destination and o.`partition` = lane.number
             order by o.available_at limit 1)
      from lane where lane.number in :partitions
)
select min(at) from due
