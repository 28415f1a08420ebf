-- Each key with a blocked message, once, and what its first one waits for: two probes of the index per key, however
-- many wait behind it.
-- $1 destination, $2 partitions
with recursive blocked as (
    select l.partition, (
        select min(o.key) from pillarbox_outbox o
         where o.destination = $1 and o.partition = l.partition and o.waits in ('retry', 'parked', 'held')
    ) as key
      from unnest($2::smallint[]) as l (partition)
    union all
    select b.partition, (
        select min(o.key) from pillarbox_outbox o
         where o.destination = $1 and o.partition = b.partition and o.waits in ('retry', 'parked', 'held') and o.key > b.key
    )
      from blocked b
     where b.key is not null
)
select b.partition, b.key, front.waits
  from blocked b
 cross join lateral (
        select o.waits from pillarbox_outbox o
         where o.destination = $1 and o.partition = b.partition and o.key = b.key
           and o.waits in ('retry', 'parked', 'held')
         order by o.destination, o.partition, o.key, o.id + 0
         limit 1
       ) front
 where b.key is not null
