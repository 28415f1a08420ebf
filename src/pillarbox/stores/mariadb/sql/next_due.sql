-- When the next deferred or retrying message of the lanes comes due: two probes per lane.
with recursive lane (number) as (
    select 0 union all select number + 1 from lane where number < 63
), due (at) as (
    select (select o.available_at from pillarbox_outbox as o
             where o.waits = 'deferred' and o.destination = %(destination)s and o.`partition` = lane.number
             order by o.available_at limit 1)
      from lane where lane.number in %(partitions)s
    union all
    select (select o.available_at from pillarbox_outbox as o
             where o.waits = 'retry' and o.destination = %(destination)s and o.`partition` = lane.number
             order by o.available_at limit 1)
      from lane where lane.number in %(partitions)s
)
select min(at) from due
