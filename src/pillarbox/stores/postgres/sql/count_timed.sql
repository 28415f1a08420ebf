-- How many messages of each destination wait for a time, due or not, from the index alone up to the limit; and the
-- topics of the first of them, for which rows must be looked up. Without a topic: all. $1 limit, $2 how many are
-- looked up, $3 now or null
with recursive place (destination) as (
    select min(destination) from pillarbox_outbox where waits in ('deferred', 'retry')
    union all
    select (select min(o.destination) from pillarbox_outbox o
             where o.waits in ('deferred', 'retry') and o.destination > p.destination)
      from place p where p.destination is not null
), side (due, low, high) as materialized (
    select true, '-infinity'::timestamptz, coalesce($3::timestamptz, statement_timestamp())
    union all
    select false, coalesce($3::timestamptz, statement_timestamp()), 'infinity'::timestamptz
)
select p.destination, null, side.due, counted.count, null::timestamptz, counted.count >= $1
  from place p
 cross join side
 cross join lateral (
        select count(*) from (
            select from generate_series(0, 63) lane
             cross join lateral (
                    select from pillarbox_outbox o
                     where o.destination = p.destination and o.partition = lane and o.waits in ('deferred', 'retry')
                       and o.available_at > side.low and o.available_at <= side.high
                     order by o.destination, o.partition, o.available_at, o.id
                     limit $1
                   ) o
             limit $1
        ) o
       ) counted
 where p.destination is not null and counted.count > 0
union all
select p.destination, first.topic, side.due, count(*), min(first.available_at), false
  from place p
 cross join side
 cross join lateral (
        select o.id, o.topic, o.available_at from generate_series(0, 63) lane
         cross join lateral (
                select o.id, o.topic, o.available_at from pillarbox_outbox o
                 where o.destination = p.destination and o.partition = lane and o.waits in ('deferred', 'retry')
                   and o.available_at > side.low and o.available_at <= side.high
                 order by o.destination, o.partition, o.available_at, o.id
                 limit least($1, $2::bigint)
               ) o
         limit least($1, $2::bigint)
       ) first
 where first.id not in (select unnest(message_ids) from pillarbox_claim)
 group by 1, 2, 3
