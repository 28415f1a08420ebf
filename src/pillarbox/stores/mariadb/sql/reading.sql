-- name: read_ahead
-- The ids of the first fresh messages of one lane, from its start and from the index alone.
select :partition as lane, group_concat(id order by id) as ids
  from (select id from pillarbox_outbox
         where waits is null and destination = :destination and `partition` = :partition and available_at is null
         order by id
         limit :limit) as first

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

-- name: find_due
-- Deferred and retrying messages of one lane whose time has come, the longest due beyond the mark.
select id, `partition`, `key`, waits, available_at, size
  from (select * from (
                  (select id, `partition`, `key`, waits, available_at, length(payload) as size from pillarbox_outbox
                   where waits = 'deferred' and destination = :destination and `partition` = :partition and available_at <= :now
                     and available_at >= :after and (available_at > :after or id > :after_id)
                   order by available_at, id
                   limit :limit)
                  union all
                  (select id, `partition`, `key`, waits, available_at, length(payload) as size from pillarbox_outbox
                   where waits = 'retry' and destination = :destination and `partition` = :partition and available_at <= :now
                     and available_at >= :after and (available_at > :after or id > :after_id)
                   order by available_at, id
                   limit :limit)
                ) as lane
         order by available_at, id
         limit :limit) as due

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

-- name: blocked_keys
-- Each key with a blocked message, once, and what the first of them waits for: two probes of the index per key,
-- however many wait behind it.
with recursive lane (number) as (
    select 0 union all select number + 1 from lane where number < 63
), blocked (lane, blocked_key) as (
    select lane.number, (
        select o.blocked_key from pillarbox_outbox as o
         where o.destination = :destination and o.`partition` = lane.number and o.blocked_key is not null
         order by o.blocked_key
         limit 1
    )
      from lane where lane.number in :partitions
    union all
    select b.lane, (
        select o.blocked_key from pillarbox_outbox as o
         where o.destination = :destination and o.`partition` = b.lane and o.blocked_key > b.blocked_key
         order by o.blocked_key
         limit 1
    )
      from blocked as b
     where b.blocked_key is not null
)
select b.lane, convert(b.blocked_key using utf8mb4), (
    select o.waits from pillarbox_outbox as o
     where o.destination = :destination and o.`partition` = b.lane and o.blocked_key = b.blocked_key
     order by o.id
     limit 1
)
  from blocked as b
 where b.blocked_key is not null

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
