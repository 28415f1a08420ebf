-- Messages in a relay's hands: found through the claims. $1 limit
select id, message_id, destination, partition, kind, type, topic, key,
       payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity') as available_at, waits, attempts, last_error, status_at, 'sending'
  from pillarbox_outbox
 where (waits is null or waits <> 'held') and id = any(array(select unnest(message_ids) from pillarbox_claim)) /* where */
 order by id
 limit $1
