-- When the next deferred or retrying message of the lanes comes due. $1 destination, $2 partitions
select min(o.available_at)
  from unnest($2::smallint[]) as l (partition)
 cross join lateral (
        select available_at from pillarbox_outbox o
         where o.destination = $1 and o.partition = l.partition and o.waits in ('deferred', 'retry')
         order by o.destination, o.partition, o.available_at, o.id
         limit 1
       ) o
