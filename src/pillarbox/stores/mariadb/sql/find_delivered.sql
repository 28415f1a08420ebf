-- Delivered messages, most of the history: by id, and not collected by status to be sorted.
select id, message_id, destination, `partition`, kind, type, topic, `key`,
       case when %(payloads)s then payload when payload is not null then '' end, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, null, attempts, last_error, status_at, status
  from pillarbox_history force index for order by (primary)
 where status = 'delivered' /* where */
 order by id
 limit %(limit)s
