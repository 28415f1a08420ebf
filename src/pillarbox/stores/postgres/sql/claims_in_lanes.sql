-- The ids in a relay's claims that are open in these lanes. $1 relay, $2 destination, $3 partitions
select o.id
  from pillarbox_claim c cross join lateral unnest(c.message_ids) as m (id)
  join pillarbox_outbox o on o.id = m.id
 where c.relay_id = $1 and o.destination = $2 and o.partition = any($3::smallint[])
