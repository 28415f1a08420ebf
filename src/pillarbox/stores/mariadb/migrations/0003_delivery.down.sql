-- --- counts ---
alter table pillarbox_history drop index pillarbox_history_corr_idx;
alter table pillarbox_outbox drop index pillarbox_outbox_corr_idx;
drop table if exists pillarbox_rollup;
alter table pillarbox_history
    add index pillarbox_history_status_idx (status, status_at, id), drop index pillarbox_history_ended_idx;
create or replace sql security definer view pillarbox_shown_outbox as
select id, message_id, destination, `partition`, kind, type, topic, `key`, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at
  from pillarbox_outbox;
alter table pillarbox_outbox drop column due_at;
