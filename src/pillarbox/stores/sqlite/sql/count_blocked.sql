-- How many messages of a destination wait behind another or for a person, looking at no more than so many.
select destination, topic,
       case when waits = 'held' then 'failed' when id in (select value from pillarbox_claim, json_each(message_ids)) then 'sending' else 'pending' end as state,
       1 as due, count(*), min(created_at)
  from (select id, destination, topic, waits, created_at, available_at from pillarbox_outbox
         where destination = :destination and waits in ('retry', 'parked', 'held') and waits <> 'retry'
         limit :limit)
 group by destination, topic, state, due
