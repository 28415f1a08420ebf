-- How many fresh messages a destination has, looking at no more than so many.
select destination, topic,
       case when id in (select claimed.id from pillarbox_claim
                     cross join json_table(message_ids, '$[*]' columns (id bigint path '$')) as claimed) then 'sending' else 'pending' end as state,
       1 as due, count(*), min(created_at)
  from (select id, destination, topic, waits, created_at, available_at from pillarbox_outbox
         where destination = %(destination)s and waits is null
         limit %(limit)s) as looked_at
 group by destination, topic, state, due
