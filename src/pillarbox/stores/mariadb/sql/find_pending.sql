-- Open messages that are in no relay's hands, with or without the parked ones.
select id, message_id, destination, `partition`, kind, type, topic, `key`,
       case when %(payloads)s then payload when payload is not null then '' end, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at, 'pending'
  from pillarbox_outbox
 where not waits <=> 'held' and (%(parked)s or not waits <=> 'parked')
   and id not in (select claimed.id from pillarbox_claim cross join json_table(message_ids, '$[*]' columns (id bigint path '$')) as claimed) /* where */
 order by id
 limit %(limit)s
