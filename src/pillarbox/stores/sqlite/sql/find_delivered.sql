-- Delivered messages. The + keeps SQLite from collecting them all by status to sort them by id.
select id, message_id, destination, partition, kind, type, topic, key,
       case when :payloads then payload when payload is not null then x'' end, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, null, attempts, last_error, status_at, status
  from pillarbox_history
 where +status = 'delivered' /* where */
 order by id
 limit :limit
