-- What relays of many stores and clusters need, and what lookups cost less.
-- readable from: 9
-- writable from: 9
-- runs on: 9

-- The oldest releases that may read and write the tables, so that an older one knows what a version allows which it does
-- not know. Null: its own version, as for all versions before this one.
alter table pillarbox_schema add column readable_from integer, add column writable_from integer;

-- --- less to write for each message ---

-- The place of a fresh message in its lane is one number: the entry of an index is a quarter smaller than with two, and so
-- are the pages that are written when one is split. A lane has the ids below 2^57. `pillarbox schema upgrade` builds the
-- index before, where the outbox is large.
set local client_min_messages = warning;
create index if not exists pillarbox_outbox_place_idx on pillarbox_outbox (destination, ((partition::bigint << 57) + id))
    where waits is null;
drop index pillarbox_outbox_fresh_idx;

-- Null in history stands for what most messages have: an event, JSON, no failed attempt. The relay is noted only of what
-- was not delivered.
alter table pillarbox_history
    alter column kind drop not null,
    alter column content_type drop not null,
    alter column attempts drop not null;

create or replace view pillarbox_messages as
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity') as available_at,
       waits, attempts, last_error, status_at,
       case when waits = 'held' then 'failed'
            when id in (select unnest(message_ids) from pillarbox_claim) then 'sending'
            else 'pending' end as state
  from pillarbox_outbox
union all
select id, message_id, destination, partition, coalesce(kind, 'event'), type, topic, key, payload, coalesce(content_type, 'application/json'), headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at,
       null, coalesce(attempts, 0), last_error, status_at, status
  from pillarbox_history;
