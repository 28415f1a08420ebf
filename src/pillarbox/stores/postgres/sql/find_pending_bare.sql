-- Open messages that are in no relay's hands, without their payloads, which a viewer has no right to. $1 limit
select id, message_id, destination, partition, kind, type, topic, key,
       ''::bytea, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity') as available_at, waits, attempts, last_error, status_at, 'pending'
  from pillarbox_outbox
 where (waits is null or waits <> 'held') and id not in (select unnest(message_ids) from pillarbox_claim) /* where */
 order by id
 limit $1
