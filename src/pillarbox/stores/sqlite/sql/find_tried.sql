-- Pending messages that were tried before: never fresh, so through the indexes of those that wait, not looking at
-- more than so many of them.
select id, message_id, destination, partition, kind, type, topic, key,
       case when :payloads then payload when payload is not null then x'' end, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at, 'pending'
  from pillarbox_outbox
 where id in (
        select id from (select id, attempts from pillarbox_outbox indexed by pillarbox_outbox_due_idx
                         where waits in ('deferred', 'retry') limit 10000) where attempts > 0
        union all
        select id from (select id, attempts from pillarbox_outbox indexed by pillarbox_outbox_blocked_idx
                         where waits in ('retry', 'parked', 'held') limit 100000) where attempts > 0)
   and waits <> 'held' and (:parked or waits <> 'parked')
   and id not in (select value from pillarbox_claim, json_each(message_ids)) /* where */
 order by id
 limit :limit
