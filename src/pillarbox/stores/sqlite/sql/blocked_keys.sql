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
