-- Pending messages that were tried before: never fresh, so through the index of those that wait, not looking at more
-- than so many of them.
select id, message_id, destination, `partition`, kind, type, topic, `key`,
       case when %(payloads)s then payload when payload is not null then '' end, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at, 'pending'
  from pillarbox_outbox
 where id in (select id from (
           select id, attempts from pillarbox_outbox where waits in ('deferred', 'retry', 'parked') limit 100000
       ) as waiting where attempts > 0)
   and waits <> 'held' and (%(parked)s or waits <> 'parked')
   and id not in (select claimed.id from pillarbox_claim
                   cross join json_table(message_ids, '$[*]' columns (id bigint path '$')) as claimed) /* where */
 order by id
 limit %(limit)s
