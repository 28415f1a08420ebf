-- Those of the claimed messages that are still open in these lanes. $1 ids, $2 destination, $3 partitions
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity'), waits, attempts, last_error,
       status_at
  from pillarbox_outbox
 where id = any($1::bigint[]) and destination = $2 and partition = any($3::smallint[])
 order by id
