-- name: find_ended
-- Closed messages that were not delivered: few among many, so they are searched by status.
select id, message_id, destination, `partition`, kind, type, topic, `key`,
       case when :payloads then payload when payload is not null then x'' end, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, null, attempts, last_error, status_at, status
  from pillarbox_history
 where status in ('failed', 'skipped', 'discarded') and status in :states /* where */
 order by id
 limit :limit

-- name: activity
-- The latest deliveries, newest first, with their times in microseconds. As doubles: whole numbers may be out of range.
select destination, topic,
       status_at + 0e0 - case when attempts = 0 and available_at > created_at then available_at else created_at end,
       status_at + 0e0 - event_time, status_at
  from pillarbox_history
 where status = 'delivered' and status_at >= :now - :window
 order by status_at desc, id desc
 limit :limit

-- name: attempts_failed
-- Count failed attempts by destination, among the latest journal entries only.
select destination, count(*)
  from (select destination, action, at from pillarbox_journal order by id desc limit :limit) as latest
 where action = 'attempt_failed' and at >= :now - :window
 group by destination
