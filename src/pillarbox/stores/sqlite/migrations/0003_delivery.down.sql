-- --- counts ---
drop index pillarbox_history_corr_idx;
drop index pillarbox_outbox_corr_idx;
drop table pillarbox_rollup;
drop index pillarbox_history_ended_idx;
drop index pillarbox_outbox_since_idx;
alter table pillarbox_outbox drop column due_at;
