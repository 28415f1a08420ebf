-- The destinations that have open messages: one probe for each, and for each reason to wait.
with recursive fresh (destination) as (
    select min(destination) from pillarbox_outbox where waits is null
    union all
    select (select min(o.destination) from pillarbox_outbox as o where o.waits is null and o.destination > fresh.destination)
      from fresh where fresh.destination is not null
), timed (destination) as (
    select min(destination) from pillarbox_outbox where waits in ('deferred', 'retry')
    union all
    select (select min(o.destination) from pillarbox_outbox as o
             where o.waits in ('deferred', 'retry') and o.destination > timed.destination)
      from timed where timed.destination is not null
), blocked (destination) as (
    select min(destination) from pillarbox_outbox where waits in ('retry', 'parked', 'held')
    union all
    select (select min(o.destination) from pillarbox_outbox as o
             where o.waits in ('retry', 'parked', 'held') and o.destination > blocked.destination)
      from blocked where blocked.destination is not null
)
select destination from fresh where destination is not null
union select destination from timed where destination is not null
union select destination from blocked where destination is not null
