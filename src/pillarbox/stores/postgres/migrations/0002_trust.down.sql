-- Removes the rules for what others write.
alter table pillarbox_outbox
    drop constraint pillarbox_outbox_destination_chk,
    drop constraint pillarbox_outbox_headers_chk,
    drop constraint pillarbox_outbox_lengths_chk,
    drop constraint pillarbox_outbox_times_chk,
    drop constraint pillarbox_outbox_waits_chk;

-- Notifies for every insert while a relay sleeps, and forgets the leases of relays.
create or replace function pillarbox_wake() returns trigger language plpgsql security definer as $$
begin
    if exists (select from pillarbox_relay where asleep and expires_at > statement_timestamp()) then
        perform pg_notify('pillarbox', tg_relid::text);
    end if;
    return null;
end
$$;

do $$
begin
    execute format(
        'alter function %s set search_path = %I, pg_temp',
        'pillarbox_wake()'::regprocedure,
        (select nspname from pg_class join pg_namespace n on n.oid = relnamespace
          where pg_class.oid = 'pillarbox_outbox'::regclass));
end
$$;

grant execute on function pillarbox_wake() to public;

alter table pillarbox_lane drop column revision;
alter table pillarbox_relay drop column lease;
