-- Closed messages go again: under their old ids, and never as fresh ones, which a relay may have read past.
insert into pillarbox_outbox (
       id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at)
select id, message_id, coalesce(%(to)s, destination), `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at,
       %(now)s, 'retry', 0, last_error, %(now)s
  from pillarbox_history
 where id in %(ids)s
