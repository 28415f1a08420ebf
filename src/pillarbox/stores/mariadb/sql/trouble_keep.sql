-- A message that ends undelivered enters the history, always with its payload: it can be redriven.
insert into pillarbox_history (
       id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status, relay_id)
select id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 9223372036854775807),
       %(attempts)s, coalesce(%(error)s, last_error), %(now)s, %(state)s, %(relay_id)s
  from pillarbox_outbox
 where id = %(id)s
   and destination = %(destination)s and `partition` in %(partitions)s
