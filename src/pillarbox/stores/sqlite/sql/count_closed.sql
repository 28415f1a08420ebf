-- How many messages ended in each way, looking at no more than the latest so many of each.
select h.destination, h.topic, h.status, 1, count(*), min(h.status_at)
  from (select 'delivered' as status union all select 'failed' union all select 'skipped' union all select 'discarded') as way
 cross join pillarbox_history as h
    on h.id in (
        select c.id from pillarbox_history as c where c.status = way.status order by c.status_at desc, c.id desc limit :limit
       )
 group by h.destination, h.topic, h.status
