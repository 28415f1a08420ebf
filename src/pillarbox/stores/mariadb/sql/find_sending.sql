-- Messages in a relay's hands: found through the claims.
select id, message_id, destination, `partition`, kind, type, topic, `key`,
       case when %(payloads)s then payload when payload is not null then '' end, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at, 'sending'
  from pillarbox_outbox
 where not waits <=> 'held' and id in (select claimed.id from pillarbox_claim cross join json_table(message_ids, '$[*]' columns (id bigint path '$')) as claimed) /* where */
 order by id
 limit %(limit)s
