-- --- counts ---
drop table pillarbox_rollup;

-- The column takes the index of ages with it. The others are dropped where the tables are: no search path may be set.
alter table pillarbox_outbox drop column due_at;
do $$
declare
    place text := (select nspname from pg_class join pg_namespace n on n.oid = relnamespace
                    where pg_class.oid = 'pillarbox_outbox'::regclass);
begin
    execute format('drop index %I.%s', place, 'pillarbox_history_ended_idx');
    execute format('drop index %I.%s', place, 'pillarbox_history_corr_idx');
    execute format('drop index %I.%s', place, 'pillarbox_outbox_corr_idx');
end
$$;
