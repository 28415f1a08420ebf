-- Failed messages that block their key: few, and never among the fresh ones, so through the index of the blocked.
select id, message_id, destination, partition, kind, type, topic, key,
       case when :payloads then payload when payload is not null then x'' end, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at, 'failed'
  from pillarbox_outbox indexed by pillarbox_outbox_blocked_idx
 where waits = 'held' and waits in ('retry', 'parked', 'held') /* where */
 order by id
 limit :limit
