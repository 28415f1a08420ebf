-- The older version needs every index. Where one is missing, history is locked against writers while it is built.
set local client_min_messages = warning; -- most are there
create index if not exists pillarbox_history_message_idx on pillarbox_history (message_id);
create index if not exists pillarbox_history_status_idx on pillarbox_history (status, status_at, id);
create index if not exists pillarbox_history_corr_idx on pillarbox_history (left(correlation_id, 64));
create index if not exists pillarbox_outbox_corr_idx on pillarbox_outbox (left(correlation_id, 64));

do $$
begin
    if current_setting('server_version_num')::integer >= 140000 then
        execute 'alter table pillarbox_outbox alter column payload set compression default';
        execute 'alter table pillarbox_history alter column payload set compression default';
    end if;
end
$$;

alter table pillarbox_history reset (
    autovacuum_vacuum_scale_factor, autovacuum_vacuum_insert_scale_factor, autovacuum_analyze_scale_factor);
alter table pillarbox_rollup reset (vacuum_truncate);
alter table pillarbox_relay reset (vacuum_truncate);
alter table pillarbox_claim reset (
    vacuum_truncate, toast.vacuum_truncate, toast.autovacuum_vacuum_scale_factor, toast.autovacuum_vacuum_cost_delay);
alter table pillarbox_outbox reset (
    vacuum_truncate, toast.vacuum_truncate, toast.autovacuum_vacuum_scale_factor, toast.autovacuum_vacuum_cost_delay);
