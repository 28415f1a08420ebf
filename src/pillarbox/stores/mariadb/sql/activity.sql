-- The latest deliveries, newest first, with their times in microseconds.
select destination, topic,
       status_at - case when attempts = 0 and available_at > created_at then available_at else created_at end,
       status_at - event_time, status_at
  from pillarbox_history
 where status = 'delivered' and status_at >= %(now)s - %(window)s
 order by status_at desc, id desc
 limit %(limit)s
