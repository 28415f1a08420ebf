-- Those of the claimed messages that are still open in these lanes.
select id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at
  from pillarbox_outbox
 where id in %(ids)s
   and destination = %(destination)s and `partition` in %(partitions)s
 order by id
