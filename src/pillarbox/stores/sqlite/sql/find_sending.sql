-- Messages in a relay's hands: found through the claims.
select id, message_id, destination, partition, kind, type, topic, key,
       case when :payloads then payload when payload is not null then x'' end, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at, 'sending'
  from pillarbox_outbox
 where waits is not 'held' and id in (select value from pillarbox_claim, json_each(message_ids)) /* where */
 order by id
 limit :limit
