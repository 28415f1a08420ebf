-- How many messages of a destination wait for a time, looking at no more than so many.
select destination, topic,
       case when id in (select value from pillarbox_claim, json_each(message_ids)) then 'sending' else 'pending' end as state,
       available_at <= :now as due, count(*), min(available_at)
  from (select id, destination, topic, waits, created_at, available_at from pillarbox_outbox
         where destination = :destination and waits in ('deferred', 'retry')
         limit :limit)
 group by destination, topic, state, due
