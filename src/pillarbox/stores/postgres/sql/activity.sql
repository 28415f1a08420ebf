-- The latest deliveries, newest first. $1 since when, $2 limit
select destination, topic,
       date_part('epoch', status_at - case when attempts = 0 and available_at > created_at then available_at else created_at end),
       date_part('epoch', status_at - event_time), status_at
  from pillarbox_history
 where status = 'delivered' and status_at >= $1
 order by status desc, status_at desc, id desc
 limit $2
