-- What was not delivered has an index of its own. The indexes for lookups are optional from now on: see docs/schema.md.

-- These tables grow and shrink all day. To give their empty ends back to the disk takes a lock that stops writers.
alter table pillarbox_outbox set (
    vacuum_truncate = off, toast.vacuum_truncate = off, toast.autovacuum_vacuum_scale_factor = 0.01,
    toast.autovacuum_vacuum_cost_delay = 0);
alter table pillarbox_claim set (
    vacuum_truncate = off, toast.vacuum_truncate = off, toast.autovacuum_vacuum_scale_factor = 0.01,
    toast.autovacuum_vacuum_cost_delay = 0);
alter table pillarbox_relay set (vacuum_truncate = off);
alter table pillarbox_rollup set (vacuum_truncate = off);
-- Rows are only added and, much later, deleted. By default a fifth of a large history would be dead before it is cleaned.
alter table pillarbox_history set (
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05);

-- Large payloads are compressed once, by the writer, and moved into history as they are. lz4 costs a fraction of the time
-- of the default. Some servers are older, or built without it.
do $$
begin
    if current_setting('server_version_num')::integer >= 140000 then
        execute 'alter table pillarbox_outbox alter column payload set compression lz4';
        execute 'alter table pillarbox_history alter column payload set compression lz4';
    end if;
exception when feature_not_supported then
    null;
end
$$;
