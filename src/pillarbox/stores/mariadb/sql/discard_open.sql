-- Open messages that a person gave up enter the history.
insert into pillarbox_history (
       id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status)
select id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 9223372036854775807), attempts, %(reason)s,
       %(now)s, 'discarded'
  from pillarbox_outbox
 where id in %(ids)s
