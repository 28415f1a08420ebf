-- How many messages wait behind another or for a person, by destination, looking at no more than so many of each.
with recursive place (destination) as (
    select min(destination) from pillarbox_outbox where waits in ('retry', 'parked', 'held')
    union all
    select (select min(o.destination) from pillarbox_outbox as o where o.waits in ('retry', 'parked', 'held') and o.destination > place.destination)
      from place
     where place.destination is not null
)
select m.destination, m.topic, case when m.waits = 'held' then 'failed' when m.id in (select value from pillarbox_claim, json_each(message_ids)) then 'sending' else 'pending' end as state,
       1 as due, count(*), min(m.created_at)
  from place
 cross join pillarbox_outbox as m
    on m.id in (
        select o.id from pillarbox_outbox as o
         where o.destination = place.destination and o.waits in ('retry', 'parked', 'held') and o.waits <> 'retry'
         limit :limit
       )
 group by m.destination, m.topic, state, due
