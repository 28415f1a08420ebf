-- The blocked messages of one key, by id. $1 destination, $2 partition, $3 key, $4 above this id, $5 limit
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity'), waits, attempts,
       last_error, status_at
  from pillarbox_outbox
 where destination = $1 and partition = $2 and key = $3 and id + 0 > $4
   and waits in ('retry', 'parked', 'held')
 order by destination, partition, key, id + 0
 limit $5
