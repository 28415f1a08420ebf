-- History is partitioned by ranges of ids, so that retention drops a partition of old messages and deletes no rows.

-- The old table becomes the first partition, as it is. A new one takes what belongs to no other partition.
do $$
declare
    parent constant oid := 'pillarbox_history'::regclass;
    outbox constant oid := 'pillarbox_outbox'::regclass;
    most constant bigint := coalesce(nullif(current_setting('pillarbox.most_bytes_scanned', true), '')::bigint, 1073741824);
    place text;
    base text;
    owner text;
    highest bigint;
    bound bigint;
    proof text;
    one record;
    lookups text[];
begin
    select nspname, relname, pg_get_userbyid(relowner) into place, base, owner
      from pg_class join pg_namespace n on n.oid = relnamespace where pg_class.oid = parent;
    execute format('lock table %I.%I in access exclusive mode', place, base);

    select greatest(coalesce(pg_sequence_last_value(pg_get_serial_sequence('pillarbox_outbox', 'id')::regclass), 0),
                    (select max(id) from pillarbox_history where id < 4503599627370496),
                    (select max(id) from pillarbox_outbox where id < 4503599627370496))
      into highest;
    -- A constraint that was validated before saves the scan of the table under the lock: see docs/schema.md.
    select conname, substring(pg_get_constraintdef(oid) from '\(id < ''?(\d+)')::bigint into proof, bound
      from pg_constraint
     where conrelid = parent and contype = 'c' and convalidated and conname = base || '_bound_chk';
    if bound is null or bound <= highest then
        if pg_relation_size(parent) > most then
            raise exception 'history is too large to be read under a lock: add a constraint before, as docs/schema.md shows' using errcode = '55000';
        end if;
        bound := (highest / 1000000 + 2) * 1000000;
    end if;

    -- Names of indexes are free again for those of the whole.
    lookups := array(select substr(i.relname, length(base) + 2)
                       from pg_index join pg_class i on i.oid = indexrelid
                      where indrelid = parent and indisvalid and not indisprimary
                        and i.relname in (base || '_message_idx', base || '_status_idx', base || '_corr_idx',
                                          base || '_ended_idx', base || '_failed_idx'));
    for one in select i.relname, indisvalid from pg_index join pg_class i on i.oid = indexrelid
                where indrelid = parent and starts_with(i.relname, base || '_')
    loop
        if one.indisvalid then
            execute format('alter index %I.%I rename to %I', place, one.relname,
                           left(base || '_p0' || substr(one.relname, length(base) + 1), 63));
        else
            execute format('drop index %I.%I', place, one.relname);
        end if;
    end loop;
    execute format('alter table %I.%I rename to %I', place, base, base || '_p0');
    execute format('create table %I.%I (like %I.%I including all excluding indexes) partition by range (id)',
                   place, base, place, base || '_p0');
    execute format('alter table %I.%I owner to %I', place, base, owner);
    if proof is not null then
        execute format('alter table %I.%I drop constraint %I', place, base, proof);
    end if;
    execute format('alter table %I.%I add constraint %I primary key (id)', place, base, base || '_pkey');

    execute format(
        'create table %I.%I (like %I.%I including all excluding indexes) with ('
        'autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05, '
        'autovacuum_analyze_scale_factor = 0.05)', place, base || '_default', place, base);
    execute format('alter table %I.%I owner to %I', place, base || '_default', owner);
    execute format('alter table %I.%I attach partition %I.%I default', place, base, place, base || '_default');
    execute format('with moved as (delete from %I.%I where id >= %s returning *) insert into %I.%I select * from moved',
                   place, base || '_p0', bound, place, base);
    execute format('alter table %I.%I attach partition %I.%I for values from (minvalue) to (%s)',
                   place, base, place, base || '_p0', bound);
    if proof is not null then
        execute format('alter table %I.%I drop constraint %I', place, base || '_p0', proof);
    end if;

    -- The partition's own indexes become parts of these; none is built again.
    for one in
        select name, columns
          from (values ('message_idx', '(message_id)'), ('status_idx', '(status, status_at, id)'),
                       ('corr_idx', '(left(correlation_id, 64))'),
                       ('ended_idx', '(status, destination, status_at, id) where status in (''failed'', ''skipped'', ''discarded'')'),
                       ('failed_idx', '(destination, fingerprint, status_at) where status = ''failed'''))
               as known (name, columns)
         where name = any(lookups)
    loop
        execute format('create index %I on %I.%I %s', base || '_' || one.name, place, base, one.columns);
    end loop;

    -- Roles keep their rights. They need none on partitions.
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

-- The functions below run as the tables' owner, because only he may change tables; relays may call them. Each waits for a
-- lock so briefly that nobody notices who queues behind it: whoever calls tries again later.

-- Adds partitions ahead of the ids, and returns how many. One covers a sixteenth of the ids that history has, and a
-- million at least: so there are neither thousands of partitions nor such that take long to expire. They begin above every
-- id that was given: what is in the default partition belongs to none of them. If there was none ahead, they begin further
-- above, for an id that was given a moment ago may be on its way into the default partition.
create function pillarbox_history_extend() returns integer language plpgsql security definer as $$
declare
    parent constant oid := 'pillarbox_history'::regclass;
    million constant bigint := 1000000;
    place text;
    base text;
    given bigint;
    lowest bigint;
    upper bigint;
    ahead integer;
    width bigint := million;
    made integer := 0;
begin
    lock table only pillarbox_history in share update exclusive mode;
    select nspname, relname into place, base
      from pg_class join pg_namespace n on n.oid = relnamespace where pg_class.oid = parent;
    given := greatest(pg_sequence_last_value(pg_get_serial_sequence('pillarbox_outbox', 'id')::regclass),
                      (select max(id) from pillarbox_history where id < 4503599627370496), 0);
    select min(coalesce(substring(bound from 'FROM \(''?(-?\d+)')::bigint, bound_to - million)), max(bound_to),
           count(*) filter (where substring(bound from 'FROM \(''?(-?\d+)')::bigint > given)
      into lowest, upper, ahead
      from pg_inherits
      join pg_class on pg_class.oid = inhrelid
     cross join lateral pg_get_expr(relpartbound, pg_class.oid) as bound
     cross join lateral (select substring(bound from 'TO \(''?(\d+)')::bigint as bound_to) b
     where inhparent = parent and bound_to is not null;
    while width * 32 <= given - lowest loop
        width := width * 2;
    end loop;
    if upper is null or upper <= given + 100000 then
        upper := ((given + 100000) / million + 1) * million;
    end if;
    while ahead < 3 and upper + width <= 4503599627370496 loop
        execute format(
            'create table %I.%I (like %I.%I including all excluding indexes) with ('
            'autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05, '
            'autovacuum_analyze_scale_factor = 0.05)', place, base || '_p' || upper / million, place, base);
        execute format('alter table %I.%I attach partition %I.%I for values from (%s) to (%s)',
                       place, base, place, base || '_p' || upper / million, upper, upper + width);
        upper := upper + width;
        ahead := ahead + 1;
        made := made + 1;
    end loop;
    return made;
end
$$;

-- Takes a partition out of history, but for the messages that it is told to keep: these go into the default partition, and
-- so do messages of these ids that are closed later. What was closed before the times in `cutoffs`, by status, may be
-- removed from it then. False: there is no such partition, or ids of it have not been given yet.
create function pillarbox_history_detach(number bigint, keep bigint[], cutoffs jsonb) returns boolean
language plpgsql security definer as $$
declare
    parent constant oid := 'pillarbox_history'::regclass;
    place text;
    base text;
    leaf text;
    upper bigint;
begin
    if cardinality(keep) > 10000 or jsonb_typeof(cutoffs) is distinct from 'object' then
        raise exception 'a partition is detached with at most 10000 ids to keep, and an object of times'
            using errcode = '22023';
    end if;
    perform value::timestamptz from jsonb_each_text(cutoffs);
    lock table only pillarbox_history in access exclusive mode;
    select nspname, c.relname into place, base
      from pg_class c join pg_namespace n on n.oid = relnamespace where c.oid = parent;
    leaf := base || '_p' || number;
    select substring(pg_get_expr(relpartbound, c.oid) from 'TO \(''?(\d+)')::bigint into upper
      from pg_inherits join pg_class c on c.oid = inhrelid
     where inhparent = parent and relname = leaf;
    if upper is null or upper > (select greatest(
            coalesce(pg_sequence_last_value(pg_get_serial_sequence('pillarbox_outbox', 'id')::regclass), 0),
            (select max(id) from pillarbox_history where id < 4503599627370496)))
    then
        return false;
    end if;
    execute format('alter table %I.%I detach partition %I.%I', place, base, place, leaf);
    execute format('comment on table %I.%I is %L', place, leaf, 'pillarbox detached ' || cutoffs::text);
    execute format('with moved as (delete from %I.%I where id = any($1) returning *) insert into %I.%I select * from moved',
                   place, leaf, place, base) using keep;
    return true;
end
$$;

-- Walks over the next messages of a detached partition: those that were not closed early enough go back into history, and
-- the journal of the others is deleted. After the last one the table is dropped. Returns how many will be gone, and the id to
-- go on after, or null. The comment on the table makes it ours: somebody may have one of such a name. One that is gone
-- meanwhile was removed by another session.
create function pillarbox_history_remove(number bigint, after bigint, most integer, out removed bigint, out next_after bigint)
language plpgsql security definer as $$
declare
    parent constant oid := 'pillarbox_history'::regclass;
    place text;
    base text;
    leaf text;
    cutoffs jsonb;
    stayed bigint;
begin
    select nspname, c.relname into place, base
      from pg_class c join pg_namespace n on n.oid = relnamespace where c.oid = parent;
    leaf := base || '_p' || number;
    select substr(obj_description(c.oid, 'pg_class'), 20)::jsonb into cutoffs
      from pg_class c join pg_namespace n on n.oid = relnamespace
     where nspname = place and c.relname = leaf and relkind = 'r' and not relispartition
       and relowner = (select relowner from pg_class where oid = parent)
       and starts_with(obj_description(c.oid, 'pg_class'), 'pillarbox detached {');
    if cutoffs is null then
        removed := 0;
        return;
    end if;
    begin
        execute format('lock table %I.%I in access exclusive mode', place, leaf);
    exception when undefined_table then
        removed := 0;
        return;
    end;
    execute format('select count(*), max(id) from (select id from %I.%I where id > $1 order by id limit $2) w', place, leaf)
       into removed, next_after using after, most;
    if next_after is null then
        execute format('drop table %I.%I', place, leaf);
        return;
    end if;
    execute format(
        'with stays as (
             delete from %I.%I
              where id > $1 and id <= $2 and (status_at < ($3 ->> status)::timestamptz) is not true
             returning *
         )
         insert into %I.%I (
                id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
                correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status, relay_id)
         select case when exists (select from %I.%I h where h.id = stays.id)
                     then 4503599627370496 + (random() * 4503599627370495)::bigint else id end,
                message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
                correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status, relay_id
           from stays', place, leaf, place, base, place, base) using after, next_after, cutoffs;
    get diagnostics stayed = row_count;
    removed := removed - stayed;
    execute format(
        'delete from %s j using %I.%I l
          where l.id > $1 and l.id <= $2 and j.message_id = l.message_id and j.destination = l.destination',
        'pillarbox_journal'::regclass, place, leaf) using after, next_after;
end
$$;

do $$
declare
    place text := (select nspname from pg_class join pg_namespace n on n.oid = relnamespace
                    where pg_class.oid = 'pillarbox_history'::regclass);
    owner text := (select pg_get_userbyid(relowner) from pg_class where oid = 'pillarbox_history'::regclass);
    each_function text;
    cleaner oid;
begin
    foreach each_function in array array[
        'pillarbox_history_extend()', 'pillarbox_history_detach(bigint, bigint[], jsonb)',
        'pillarbox_history_remove(bigint, bigint, integer)']
    loop
        execute format('alter function %s set search_path = %I, pg_temp', each_function::regprocedure, place);
        execute format('alter function %s set lock_timeout = %L', each_function::regprocedure, '100ms');
        execute format('revoke execute on function %s from public', each_function::regprocedure);
        -- Whoever may delete history cleans it up.
        for cleaner in select distinct grantee from pg_class, aclexplode(relacl)
                        where pg_class.oid = 'pillarbox_history'::regclass and privilege_type = 'DELETE' and grantee <> 0
                          and pg_get_userbyid(grantee) <> owner
        loop
            execute format('grant execute on function %s to %I', each_function::regprocedure, pg_get_userbyid(cleaner));
        end loop;
        execute format('alter function %s owner to %I', each_function::regprocedure, owner);
    end loop;
end
$$;

do $$
begin
    perform pillarbox_history_extend();
end
$$;
