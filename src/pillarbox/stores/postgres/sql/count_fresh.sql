-- How many fresh messages each destination has, from the index alone up to the limit; and the topics of the first of
-- them, for which rows must be looked up. Without a topic: all. $1 limit, $2 how many are looked up
with recursive place (destination) as (
    select min(destination) from pillarbox_outbox where waits is null
    union all
    select (select min(o.destination) from pillarbox_outbox o where o.waits is null and o.destination > p.destination)
      from place p where p.destination is not null
)
select p.destination, null, true as due, counted.count, null::timestamptz, counted.count >= $1
  from place p
 cross join lateral (
        select count(*) from (
            select o.destination from pillarbox_outbox o where o.destination = p.destination and o.waits is null
             order by o.destination, o.partition
             limit $1
        ) o
       ) counted
 where p.destination is not null
union all
select p.destination, first.topic, true, count(*), min(first.created_at), false
  from place p
 cross join lateral (
        select o.id, o.topic, o.created_at from pillarbox_outbox o where o.destination = p.destination and o.waits is null
         order by o.destination, o.partition, o.id + 0
         limit least($1, $2::bigint)
       ) first
 where first.id not in (select unnest(message_ids) from pillarbox_claim)
 group by p.destination, first.topic
