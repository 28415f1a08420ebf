-- A message that ends undelivered enters the history, always with its payload: it can be redriven.
insert into pillarbox_history (
       id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status, relay_id)
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 9223372036854775807),
       :attempts, coalesce(:error, last_error), :now, :state, :relay_id
  from pillarbox_outbox
 where id = :id
   and destination = :destination and partition in (select value from json_each(:partitions))
