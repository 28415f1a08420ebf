-- When the longest waiting message of each destination was due: one probe per lane and reason to wait. What is parked
-- waits for another message, and does not count.
with recursive lane (number) as (
    select 0 union all select number + 1 from lane where number < 63
), due (destination, at) as (
    select place.destination,
           (select o.created_at from pillarbox_outbox as o
             where o.waits is null and o.destination = place.destination and o.`partition` = lane.number
               and o.available_at is null
             order by o.id limit 1)
      from (select distinct destination from pillarbox_outbox where waits is null) as place cross join lane
    union all
    select place.destination,
           (select o.available_at from pillarbox_outbox as o
             where o.waits = place.waits and o.destination = place.destination and o.`partition` = lane.number
               and o.available_at <= %(now)s
             order by o.available_at limit 1)
      from (select distinct waits, destination from pillarbox_outbox where waits in ('deferred', 'retry')) as place
     cross join lane
)
select destination, min(at) from due where at is not null group by destination
