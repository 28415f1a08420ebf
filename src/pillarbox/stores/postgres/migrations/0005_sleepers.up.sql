-- Who sleeps is kept apart from what heartbeats rewrite, and lanes remember how far they are done with.

-- No message up to this id is fresh in the lane, or ever will be: a first read begins above it, and not at the dead rows
-- below. `done_tx` is a transaction of that time: a server whose transactions have not come so far is another one.
alter table pillarbox_lane
    add column done_to bigint not null default 0,
    add column done_tx xid8;

-- The relays that writers should notify. A row is written when a relay falls asleep and about once a minute after that, so
-- the table stays small under a long transaction, in which every heartbeat leaves a dead row.
create table pillarbox_sleeper (
    relay_id uuid        not null,
    until    timestamptz not null,
    constraint pillarbox_sleeper_pkey primary key (relay_id)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);

-- Seeks past the dead rows of all who slept until a time that has passed.
create index pillarbox_sleeper_until_idx on pillarbox_sleeper (until);

create or replace function pillarbox_wake() returns trigger language plpgsql security definer as $$
begin
    if (case lower(current_setting('pillarbox.notify', true))
             when 'on' then true
             when 'off' then false
             else current_setting('max_prepared_transactions') = '0'
        end)
       and exists (select from pillarbox_sleeper where until > statement_timestamp())
    then
        perform pg_notify('pillarbox', tg_relid::text);
    end if;
    return null;
end
$$;

-- Replacing a function resets its settings. Without the second one the planner would walk a small table from its start.
do $$
begin
    execute format(
        'alter function %s set search_path = %I, pg_temp',
        'pillarbox_wake()'::regprocedure,
        (select nspname from pg_class join pg_namespace n on n.oid = relnamespace
          where pg_class.oid = 'pillarbox_outbox'::regclass));
    execute format('alter function %s set enable_seqscan = off', 'pillarbox_wake()'::regprocedure);
end
$$;
