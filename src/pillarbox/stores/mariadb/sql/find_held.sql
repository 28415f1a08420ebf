-- Failed messages that block their key: few, and never among the fresh ones.
select id, message_id, destination, `partition`, kind, type, topic, `key`,
       case when %(payloads)s then payload when payload is not null then '' end, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at, 'failed'
  from pillarbox_outbox
 where waits = 'held' /* where */
 order by id
 limit %(limit)s
