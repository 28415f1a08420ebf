-- Delivered messages enter the history, with or without their payload.
insert into pillarbox_history (
       id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status, relay_id)
select id, message_id, destination, `partition`, kind, type, topic, `key`, case %(keep)s when 'full' then payload end, content_type,
       headers, source, subject, correlation_id, causation_id, event_time, created_at,
       nullif(available_at, 9223372036854775807), attempts, last_error, %(now)s, 'delivered', %(relay_id)s
  from pillarbox_outbox
 where id in %(ids)s
   and destination = %(destination)s and `partition` in %(partitions)s
