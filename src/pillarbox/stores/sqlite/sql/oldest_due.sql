-- When the longest waiting message of each destination was due: one probe per lane and reason to wait. What is parked
-- waits for another message, and does not count.
with recursive fresh (destination) as (
    select min(destination) from pillarbox_outbox where waits is null
    union all
    select (select min(o.destination) from pillarbox_outbox as o where o.waits is null and o.destination > fresh.destination)
      from fresh where fresh.destination is not null
), timed (destination) as (
    select min(destination) from pillarbox_outbox where waits in ('deferred', 'retry')
    union all
    select (select min(o.destination) from pillarbox_outbox as o where o.waits in ('deferred', 'retry') and o.destination > timed.destination)
      from timed where timed.destination is not null
), lane (partition) as (
    select 0 union all select partition + 1 from lane where partition < 63
), due as (
    select destination,
           (select o.created_at from pillarbox_outbox as o
             where o.destination = fresh.destination and o.partition = lane.partition and o.waits is null
             order by o.id limit 1) as at
      from fresh cross join lane where fresh.destination is not null
    union all
    select destination,
           (select o.available_at from pillarbox_outbox as o
             where o.destination = timed.destination and o.partition = lane.partition
               and o.waits in ('deferred', 'retry') and o.available_at <= :now
             order by o.available_at, o.id limit 1) as at
      from timed cross join lane where timed.destination is not null
)
select destination, min(at) from due where at is not null group by destination
