drop table if exists pillarbox_probe;
alter table pillarbox_rollup drop column backlog, drop column returned;
alter table pillarbox_journal drop column selection, drop column reason;
create or replace sql security definer view pillarbox_shown_history as
select id, message_id, destination, `partition`, kind, type, topic, `key`, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status, relay_id
  from pillarbox_history;
create or replace sql security definer view pillarbox_shown_outbox as
select id, message_id, destination, `partition`, kind, type, topic, `key`, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at, due_at
  from pillarbox_outbox;
alter table pillarbox_history drop column fingerprint;
alter table pillarbox_outbox drop column fingerprint;
