-- How many messages wait for a time, by destination, looking at no more than so many of each.
with recursive place (destination) as (
    select min(destination) from pillarbox_outbox where waits in ('deferred', 'retry')
    union all
    select (select min(o.destination) from pillarbox_outbox as o where o.waits in ('deferred', 'retry') and o.destination > place.destination)
      from place
     where place.destination is not null
)
select m.destination, m.topic, case when m.id in (select value from pillarbox_claim, json_each(message_ids)) then 'sending' else 'pending' end as state,
       m.available_at <= :now as due, count(*), min(m.available_at)
  from place
 cross join pillarbox_outbox as m
    on m.id in (
        select o.id from pillarbox_outbox as o
         where o.destination = place.destination and o.waits in ('deferred', 'retry')
         limit :limit
       )
 group by m.destination, m.topic, state, due
