-- Removes the rules for what others write.
drop trigger pillarbox_outbox_trust_trg;

-- Forgets the leases of relays.
alter table pillarbox_lane drop column revision;
alter table pillarbox_relay drop column lease;

drop view pillarbox_messages;
create view pillarbox_messages as
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 9223372036854775807) as available_at,
       waits, attempts, last_error, status_at,
       case when waits = 'held' then 'failed'
            when id in (select value from pillarbox_claim, json_each(message_ids)) then 'sending'
            else 'pending' end as state
  from pillarbox_outbox
union all
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at,
       null, attempts, last_error, status_at, status
  from pillarbox_history;
