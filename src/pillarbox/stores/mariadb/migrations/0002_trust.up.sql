-- A relay's own lease is kept in its row, in microseconds; viewers and consumers get views instead of tables.

-- Null in a row that an older release wrote: then the reader's own lease decides.
alter table pillarbox_relay add column lease bigint;

-- A writer must have the right to update what it locks. The 256 slots are every value of the type, so no update can
-- change one: it would become another, or none.
delete from pillarbox_slot where slot not between 0 and 255;
insert ignore into pillarbox_slot (slot)
with recursive every (slot) as (select 0 union all select slot + 1 from every where slot < 255)
select slot from every;
alter table pillarbox_slot modify slot tinyint unsigned not null;

-- For viewers. Rights on columns would not hide payloads: HANDLER reads whole rows of a table, and takes no view.
create or replace sql security definer view pillarbox_shown_outbox as
select id, message_id, destination, `partition`, kind, type, topic, `key`, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at
  from pillarbox_outbox;
create or replace sql security definer view pillarbox_shown_history as
select id, message_id, destination, `partition`, kind, type, topic, `key`, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status, relay_id
  from pillarbox_history;
create or replace sql security definer view pillarbox_shown_inbox as
select consumer, source, message_id, status, duplicates, attempts, last_error, created_at, status_at
  from pillarbox_inbox;

-- The consumers that an account keeps the inbox of; '*' is every one. An account that is not listed has none.
create table if not exists pillarbox_consumer (
    account  varchar(128)   not null,
    consumer varbinary(800) not null,
    primary key (account, consumer)
) engine = InnoDB default character set utf8mb4 collate utf8mb4_bin;

-- The inbox as a consumer sees it: the rows of its own consumers. user() is who connected, and current_user() who made the
-- view and owns the tables. A name may contain @, a host does not.
create or replace sql security definer view pillarbox_own_inbox as
select consumer, source, message_id, status, duplicates, attempts, last_error, message, created_at, status_at
  from pillarbox_inbox
 where consumer in (select own.consumer from pillarbox_consumer as own
                     where cast(own.account as binary)
                           = cast(left(user(), char_length(user()) - locate('@', reverse(user()))) as binary))
    or exists (select 1 from pillarbox_consumer as own
                where own.consumer = '*'
                  and cast(own.account as binary)
                      = cast(left(user(), char_length(user()) - locate('@', reverse(user()))) as binary))
    or cast(left(user(), char_length(user()) - locate('@', reverse(user()))) as binary)
       = cast(left(current_user(), char_length(current_user()) - locate('@', reverse(current_user()))) as binary)
  with check option;

-- Rules for what others write. MySQL checks the rows that are there when a rule is added, so those that break one are
-- made to be due now: a relay reads them, and sends them or closes them as failed.
update pillarbox_outbox set available_at = null where waits is null and available_at is not null;

update pillarbox_outbox set waits = 'retry', available_at = 0
 where waits is null and json_type(headers) <> 'OBJECT'
    or (waits is null or waits = 'deferred') and (not destination regexp '^[A-Za-z_]' or destination regexp '[^A-Za-z0-9_.-]');

update pillarbox_outbox set waits = 'retry', available_at = 0
 where waits in ('deferred', 'retry') and coalesce(available_at, 9223372036854775807) = 9223372036854775807
    or waits = 'parked' and `key` is null;

-- The rules for headers and destinations hold for fresh rows: a row that an operator reopens must not be refused. A fresh row with a time
-- would never be read, and what waits without one, or behind a message of no key, would wait for ever. MySQL takes no CASE for a rule.
alter table pillarbox_outbox
    add constraint pillarbox_outbox_headers_chk check (waits is not null or headers is null or json_type(headers) = 'OBJECT'),
    add constraint pillarbox_outbox_destination_chk check (
        coalesce(waits in ('retry', 'parked', 'held'), false)
        or destination regexp '^[A-Za-z_]' and not destination regexp '[^A-Za-z0-9_.-]'),
    add constraint pillarbox_outbox_waits_chk check (
        waits is null and available_at is null
        or waits is not null and (
            waits not in ('deferred', 'retry', 'parked')
            or waits in ('deferred', 'retry') and coalesce(available_at < 9223372036854775807, false)
            or waits = 'parked' and `key` is not null));

-- Rises with every operator's change of open messages in the lane, so that a relay sends nothing that it read before.
alter table pillarbox_lane add column revision bigint not null default 0;
