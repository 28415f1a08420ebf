create or replace function pillarbox_wake() returns trigger language plpgsql security definer as $$
begin
    if (case lower(current_setting('pillarbox.notify', true))
             when 'on' then true
             when 'off' then false
             else current_setting('max_prepared_transactions') = '0'
        end)
       and exists (select from pillarbox_relay where asleep and expires_at > statement_timestamp())
    then
        perform pg_notify('pillarbox', tg_relid::text);
    end if;
    return null;
end
$$;

-- Replacing a function resets its settings.
do $$
begin
    execute format(
        'alter function %s set search_path = %I, pg_temp',
        'pillarbox_wake()'::regprocedure,
        (select nspname from pg_class join pg_namespace n on n.oid = relnamespace
          where pg_class.oid = 'pillarbox_outbox'::regclass));
end
$$;

drop table pillarbox_sleeper;

alter table pillarbox_lane
    drop column done_tx,
    drop column done_to;
