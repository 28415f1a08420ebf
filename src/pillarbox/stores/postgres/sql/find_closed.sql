-- Closed messages of one status. $1 limit, $2 status
select id, message_id, destination, partition, kind, type, topic, key,
       payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, null, attempts, last_error, status_at, status
  from pillarbox_history
 where status = $2 /* where */
 order by id
 limit $1
