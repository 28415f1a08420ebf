drop table pillarbox_probe;
alter table pillarbox_rollup drop column backlog, drop column returned;
-- Dropped where the table is: no search path may be set. The columns take the other indexes with them.
do $$
begin
    execute format('drop index %I.%s',
        (select nspname from pg_class join pg_namespace n on n.oid = relnamespace
          where pg_class.oid = 'pillarbox_journal'::regclass),
        'pillarbox_journal_general_idx');
end
$$;
alter table pillarbox_journal drop column selection, drop column reason;
alter table pillarbox_history drop column fingerprint;
alter table pillarbox_outbox drop column fingerprint;
