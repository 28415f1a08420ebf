-- Failed messages that block their key: through the index of the blocked. $1 limit
select id, message_id, destination, partition, kind, type, topic, key,
       payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity') as available_at, waits, attempts, last_error, status_at, 'failed'
  from pillarbox_outbox
 where waits = 'held' and waits in ('retry', 'parked', 'held') /* where */
 order by id
 limit $1
