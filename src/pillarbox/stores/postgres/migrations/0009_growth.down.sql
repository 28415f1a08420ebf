-- What relays of many stores and clusters need, and what lookups cost less.

-- --- less to write for each message ---

-- The older version reads no null. All delivered messages are written again, under a lock that stops relays.
update pillarbox_history
   set kind = coalesce(kind, 'event'), content_type = coalesce(content_type, 'application/json'), attempts = coalesce(attempts, 0)
 where kind is null or content_type is null or attempts is null;
alter table pillarbox_history
    alter column kind set not null,
    alter column content_type set not null,
    alter column attempts set not null;

create or replace view pillarbox_messages as
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity') as available_at,
       waits, attempts, last_error, status_at,
       case when waits = 'held' then 'failed'
            when id in (select unnest(message_ids) from pillarbox_claim) then 'sending'
            else 'pending' end as state
  from pillarbox_outbox
union all
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at,
       null, attempts, last_error, status_at, status
  from pillarbox_history;

create index pillarbox_outbox_fresh_idx on pillarbox_outbox (destination, partition, (id + 0)) where waits is null;
drop index pillarbox_outbox_place_idx;

alter table pillarbox_schema drop column readable_from, drop column writable_from;
