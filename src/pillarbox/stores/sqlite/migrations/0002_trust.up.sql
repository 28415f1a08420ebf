-- A relay's own lease is kept in its row, in microseconds.

-- Null in a row that an older release wrote: then the reader's own lease decides.
alter table pillarbox_relay add column lease integer;

-- Rows that no relay would find: of no lane, of no destination, or waiting without a time. They become due now, and the
-- relay that reads them sends them or closes them as failed.
update pillarbox_outbox set partition = cast(partition as integer) & 63 where typeof(partition) <> 'integer';
update pillarbox_outbox set destination = cast(destination as text) where typeof(destination) <> 'text';
update pillarbox_outbox set key = cast(key as text) where typeof(key) = 'blob' and waits in ('parked', 'held');
update pillarbox_outbox set waits = 'retry', available_at = 0
 where waits in ('deferred', 'retry') and (typeof(available_at) <> 'integer' or available_at = 9223372036854775807)
    or waits = 'parked' and key is null;

-- Rules for what others write, as a trigger: SQLite adds no check to a table. Those about the values hold for fresh rows:
-- a row that an operator reopens must not be refused. After the insert, because before it the id is not known: relays
-- read above 0, and the highest id of all would be the last that SQLite gives.
create trigger pillarbox_outbox_trust_trg after insert on pillarbox_outbox
when new.id not between 1 and 4503599627370495
  or typeof(new.partition) <> 'integer' or typeof(new.destination) <> 'text'
  or coalesce(new.waits, 'deferred') = 'deferred'
     and (new.destination not glob '[A-Za-z_]*' or new.destination glob '*[^A-Za-z0-9_.-]*'
          or instr(new.destination, char(0)) > 0)  -- glob ends at a NUL
  or new.waits in ('deferred', 'retry')
     and (typeof(new.available_at) <> 'integer' or new.available_at = 9223372036854775807)
  or new.waits = 'parked' and typeof(new.key) <> 'text'
  or new.waits is null
     and (typeof(new.payload) <> 'blob' or typeof(new.event_time) <> 'integer'
          or typeof(new.key) not in ('text', 'null')
          or case when new.headers is null then false when json_valid(new.headers) then json_type(new.headers) <> 'object'
                  else true end)
begin
    select raise(abort, 'a column of this message has a value that no relay can read: see "Rows written by others" in docs/publishing.md');
end;

-- Rises with every operator's change of open messages in the lane, so that a relay sends nothing that it read before.
alter table pillarbox_lane add column revision integer not null default 0;

-- The view again: a claim whose ids cannot be read must not hide every message.
drop view pillarbox_messages;
create view pillarbox_messages as
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 9223372036854775807) as available_at,
       waits, attempts, last_error, status_at,
       case when waits = 'held' then 'failed'
            when id in (select value from pillarbox_claim,
                                json_each(case when json_valid(message_ids) then message_ids else '[]' end)) then 'sending'
            else 'pending' end as state
  from pillarbox_outbox
union all
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at,
       null, attempts, last_error, status_at, status
  from pillarbox_history;
