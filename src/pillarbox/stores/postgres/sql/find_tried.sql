-- Pending messages that were tried before: never fresh, so through the indexes of those that wait,
-- not looking at more than so many of them. $1 limit
select id, message_id, destination, partition, kind, type, topic, key,
       payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity') as available_at, waits, attempts, last_error, status_at, 'pending'
  from pillarbox_outbox
 where id = any(array(
        select id from (select id, attempts from pillarbox_outbox where waits in ('deferred', 'retry')
                         order by destination, partition, available_at, id limit 10000) timed where attempts > 0
        union
        select id from (select id, attempts, waits from pillarbox_outbox where waits in ('retry', 'parked', 'held')
                         order by destination, partition, key, id + 0 limit 100000) blocked
         where attempts > 0 and waits <> 'held'))
   and id not in (select unnest(message_ids) from pillarbox_claim) /* where */
 order by id
 limit $1
