-- name: read_ahead
-- The ids of the first fresh messages of one lane, from its start and from the index alone.
select :partition as lane, group_concat(id order by id) as ids
  from (select id from pillarbox_outbox
         where waits is null and destination = :destination and `partition` = :partition and available_at is null
         order by id
         limit :limit) as first

-- name: due_ahead
-- The ids of the messages of one lane that have been due longest, for one reason to wait. The index alone tells.
select id, available_at from (
    select id, available_at from pillarbox_outbox
     where waits = :waits and destination = :destination and `partition` = :partition and available_at <= :now
       and id not in :skip
     order by available_at, id
     limit :limit) as due

-- name: read_key
-- The blocked messages of one key, by id.
select id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at
  from pillarbox_outbox
 where destination = :destination and `partition` = :partition and blocked_key = :key and id > :after
 order by id
 limit :limit

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
