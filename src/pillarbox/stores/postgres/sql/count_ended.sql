-- How many messages ended in each way, looking at no more than the latest so many of each, for no index knows their
-- destinations. $1 limit
select destination, topic, status, true, count(*), min(status_at), bool_or(looked_at >= $1)
  from (select h.*, count(*) over (partition by h.status) as looked_at
          from (values ('delivered'), ('failed'), ('skipped'), ('discarded')) s (status)
         cross join lateral (
                select destination, topic, status, status_at from pillarbox_history where status = s.status
                 order by status desc, status_at desc, id desc
                 limit $1
               ) h) m
 group by destination, topic, status
