-- How many messages ended in each way, looking at no more than the latest so many of each.
(select destination, topic, status, 1, count(*), min(status_at)
   from (select destination, topic, status, status_at from pillarbox_history where status = 'delivered'
          order by status_at desc, id desc limit %(limit)s) as latest
  group by destination, topic, status)
union all
(select destination, topic, status, 1, count(*), min(status_at)
   from (select destination, topic, status, status_at from pillarbox_history where status = 'failed'
          order by status_at desc, id desc limit %(limit)s) as latest
  group by destination, topic, status)
union all
(select destination, topic, status, 1, count(*), min(status_at)
   from (select destination, topic, status, status_at from pillarbox_history where status = 'skipped'
          order by status_at desc, id desc limit %(limit)s) as latest
  group by destination, topic, status)
union all
(select destination, topic, status, 1, count(*), min(status_at)
   from (select destination, topic, status, status_at from pillarbox_history where status = 'discarded'
          order by status_at desc, id desc limit %(limit)s) as latest
  group by destination, topic, status)
