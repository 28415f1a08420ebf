-- History becomes one table again. All of it is copied, under a lock that stops relays and writers.
do $$
declare
    parent constant oid := 'pillarbox_history'::regclass;
    place text;
    base text;
    owner text;
    one record;
begin
    select nspname, relname, pg_get_userbyid(relowner) into place, base, owner
      from pg_class join pg_namespace n on n.oid = relnamespace where pg_class.oid = parent;
    execute format('lock table %I.%I in access exclusive mode', place, base);
    execute format('alter table %I.%I rename to %I', place, base, base || '_parts');
    execute format(
        'create table %I.%I (like %I.%I including all excluding indexes) with ('
        'autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05, '
        'autovacuum_analyze_scale_factor = 0.05)', place, base, place, base || '_parts');
    execute format('alter table %I.%I owner to %I', place, base, owner);
    execute format('insert into %I.%I select * from %I.%I', place, base, place, base || '_parts');
    -- A partition that a relay was about to remove: all of it comes back.
    for one in
        select c.relname from pg_class c join pg_namespace n on n.oid = relnamespace
         where nspname = place and c.relname ~ ('^' || base || '_p\d+$') and relkind = 'r' and not relispartition
           and starts_with(obj_description(c.oid, 'pg_class'), 'pillarbox detached {')
    loop
        execute format('insert into %I.%I select * from %I.%I l where not exists (select from %I.%I h where h.id = l.id)',
                       place, base, place, one.relname, place, base || '_parts');
        execute format('drop table %I.%I', place, one.relname);
    end loop;

    for one in
        select privilege_type as privilege, '' as columns, grantee from pg_class, aclexplode(relacl) where oid = parent
        union all
        select privilege_type, format(' (%I)', attname), grantee from pg_attribute, aclexplode(attacl) where attrelid = parent
    loop
        if one.grantee = 0 or one.grantee in (select oid from pg_roles where rolname <> owner) then
            execute format('grant %s%s on %I.%I to %s', one.privilege, one.columns, place, base,
                           case one.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(one.grantee)) end);
        end if;
    end loop;
end
$$;

create or replace view pillarbox_messages as
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity') as available_at,
       waits, attempts, last_error, status_at,
       case when waits = 'held' then 'failed'
            when id in (select unnest(message_ids) from pillarbox_claim) then 'sending'
            else 'pending' end as state
  from pillarbox_outbox
union all
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at,
       null, attempts, last_error, status_at, status
  from pillarbox_history;

drop function pillarbox_history_extend(), pillarbox_history_detach(bigint, bigint[], jsonb),
    pillarbox_history_remove(bigint, bigint, integer);

-- The names of indexes are free when the partitions are gone.
do $$
declare
    place text;
    base text;
    kept text[];
    one record;
begin
    select nspname, relname into place, base
      from pg_class join pg_namespace n on n.oid = relnamespace where pg_class.oid = 'pillarbox_history'::regclass;
    kept := array(select substr(i.relname, length(base) + 2)
                    from pg_index join pg_class i on i.oid = indexrelid
                   where indrelid = format('%I.%I', place, base || '_parts')::regclass);
    execute format('drop table %I.%I', place, base || '_parts');
    execute format('alter table %I.%I add constraint %I primary key (id)', place, base, base || '_pkey');
    for one in
        select name, columns
          from (values ('message_idx', '(message_id)'), ('status_idx', '(status, status_at, id)'),
                       ('corr_idx', '(left(correlation_id, 64))'),
                       ('ended_idx', '(status, destination, status_at, id) where status in (''failed'', ''skipped'', ''discarded'')'),
                       ('failed_idx', '(destination, fingerprint, status_at) where status = ''failed'''))
               as known (name, columns)
         where name = any(kept)
    loop
        execute format('create index %I on %I.%I %s', base || '_' || one.name, place, base, one.columns);
    end loop;
end
$$;
