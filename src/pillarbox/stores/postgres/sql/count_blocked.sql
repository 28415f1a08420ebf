-- How many messages wait behind another or for a person, looking at no more than so many of each destination, for no
-- index tells them apart. $1 limit
with recursive place (destination) as (
    select min(destination) from pillarbox_outbox where waits in ('retry', 'parked', 'held')
    union all
    select (select min(o.destination) from pillarbox_outbox o
             where o.waits in ('retry', 'parked', 'held') and o.destination > p.destination)
      from place p where p.destination is not null
)
select p.destination, first.topic, case first.waits when 'held' then 'failed' else 'pending' end, true, count(*),
       min(first.created_at), bool_or(first.is_more)
  from place p
 cross join lateral (
        select o.id, o.topic, o.waits, o.created_at, count(*) over () >= $1 as is_more
          from (select b.id, b.topic, b.waits, b.created_at from pillarbox_outbox b
                 where b.destination = p.destination and b.waits in ('retry', 'parked', 'held')
                 order by b.destination, b.partition, b.key, b.id + 0
                 limit $1) o
       ) first
 where first.waits = 'held' or first.waits = 'parked' and first.id not in (select unnest(message_ids) from pillarbox_claim)
 group by 1, 2, 3
