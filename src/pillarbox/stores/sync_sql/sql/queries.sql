-- name: find_ended
-- Closed messages that were not delivered: few among many, so they are searched by status.
select id, message_id, destination, `partition`, kind, type, topic, `key`,
       case when :payloads then payload when payload is not null then x'' end, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, null, attempts, last_error, status_at, status
  from pillarbox_history
 where status in ('failed', 'skipped', 'discarded') and status in :states /* where */
 order by id
 limit :limit
