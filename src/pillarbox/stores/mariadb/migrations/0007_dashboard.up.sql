-- What a dashboard asks: why messages failed, what people and relays did, how much waits.

-- The error without what differs from message to message. Null: it has not failed, or an older release closed it. No index:
-- here every delivery would pay for it.
alter table pillarbox_outbox add column fingerprint varchar(200);
alter table pillarbox_history add column fingerprint varchar(200);
create or replace sql security definer view pillarbox_shown_outbox as
select id, message_id, destination, `partition`, kind, type, topic, `key`, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at,
       blocked_key, due_at, fingerprint
  from pillarbox_outbox;
create or replace sql security definer view pillarbox_shown_history as
select id, message_id, destination, `partition`, kind, type, topic, `key`, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status, relay_id,
       fingerprint
  from pillarbox_history;

-- Why an operator did it, and which messages a bulk action named.
alter table pillarbox_journal add column reason longtext, add column selection longtext;

-- Messages that were given back, and the most due ones that were counted.
alter table pillarbox_rollup
    add column returned bigint not null default 0, add column backlog bigint not null default 0;

-- When a person last asked to try a destination at once. Not in the table of pauses: an older relay takes each of its rows for one.
create table if not exists pillarbox_probe (
    destination varchar(100) character set ascii collate ascii_bin not null,
    probed_at   bigint       not null,
    primary key (destination)
) engine = InnoDB default character set utf8mb4 collate utf8mb4_bin;
