-- The blocked messages of one key, by id.
select id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at
  from pillarbox_outbox
 where destination = %(destination)s and `partition` = %(partition)s and blocked_key = %(key)s and id > %(after)s
 order by id
 limit %(limit)s
