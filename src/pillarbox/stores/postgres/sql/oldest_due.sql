-- When the longest waiting message of each destination was due: one probe per lane and reason to wait. What is parked
-- waits for another message, and does not count. $1 now or null
with recursive fresh (destination) as (
    select min(destination) from pillarbox_outbox where waits is null
    union all
    select (select min(o.destination) from pillarbox_outbox o where o.waits is null and o.destination > f.destination)
      from fresh f where f.destination is not null
), timed (destination) as (
    select min(destination) from pillarbox_outbox where waits in ('deferred', 'retry')
    union all
    select (select min(o.destination) from pillarbox_outbox o
             where o.waits in ('deferred', 'retry') and o.destination > t.destination)
      from timed t where t.destination is not null
), due as (
    select f.destination, first.created_at as at
      from fresh f
     cross join generate_series(0, 63) lane
     cross join lateral (
            select o.created_at from pillarbox_outbox o
             where o.destination = f.destination and o.partition = lane and o.waits is null
             order by o.destination, o.partition, o.id + 0
             limit 1
           ) first
    union all
    select t.destination, first.available_at
      from timed t
     cross join generate_series(0, 63) lane
     cross join lateral (
            select o.available_at from pillarbox_outbox o
             where o.destination = t.destination and o.partition = lane and o.waits in ('deferred', 'retry')
               and o.available_at <= coalesce($1::timestamptz, statement_timestamp())
             order by o.destination, o.partition, o.available_at, o.id
             limit 1
           ) first
)
select destination, min(at) from due group by destination
