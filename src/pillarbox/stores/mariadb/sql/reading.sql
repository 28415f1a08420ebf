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
-- The blocked messages of one key, by id, up to the one that reaches the limit of bytes. Finds the ids before it fetches.
select o.id, o.message_id, o.destination, o.`partition`, o.kind, o.type, o.topic, o.`key`, o.payload, o.content_type, o.headers, o.source, o.subject,
       o.correlation_id, o.causation_id, o.event_time, o.created_at, o.available_at, o.waits, o.attempts, o.last_error, o.status_at
  from (
        select id, sum(size) over (order by id rows between unbounded preceding and 1 preceding) as size_before
          from (
                select id, length(payload) as size from pillarbox_outbox
                 where destination = :destination and `partition` = :partition and blocked_key = :key and id > :after
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
