-- Each key with a blocked message, once, and what the first of them waits for: two probes of the index per key,
-- however many wait behind it.
with recursive lane (number) as (
    select 0 union all select number + 1 from lane where number < 63
), blocked (lane, blocked_key) as (
    select lane.number, (
        select o.blocked_key from pillarbox_outbox as o
         where o.destination = %(destination)s and o.`partition` = lane.number and o.blocked_key is not null
         order by o.blocked_key
         limit 1
    )
      from lane where lane.number in %(partitions)s
    union all
    select b.lane, (
        select o.blocked_key from pillarbox_outbox as o
         where o.destination = %(destination)s and o.`partition` = b.lane and o.blocked_key > b.blocked_key
         order by o.blocked_key
         limit 1
    )
      from blocked as b
     where b.blocked_key is not null
)
select b.lane, convert(b.blocked_key using utf8mb4), (
    select o.waits from pillarbox_outbox as o
     where o.destination = %(destination)s and o.`partition` = b.lane and o.blocked_key = b.blocked_key
     order by o.id
     limit 1
)
  from blocked as b
 where b.blocked_key is not null
