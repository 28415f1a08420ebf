-- The first version: open messages, closed messages, claims, lanes, relays, pauses, journal, inbox.

-- Open messages only. tx stands first: a row must draw its transaction id before its own id, or a reader whose
-- snapshot fell between the two would take a late row for an early one.
create table pillarbox_outbox (
    tx             xid8        not null default pg_current_xact_id(),
    id             bigint      generated always as identity (cache 1),
    message_id     uuid        not null,
    destination    text        not null,
    partition      smallint    not null check (partition between 0 and 63),
    kind           text        not null check (kind in ('event', 'command')),
    type           text        not null,
    topic          text        not null,
    key            text,
    payload        bytea       not null,
    content_type   text        not null,
    headers        jsonb,
    source         text        not null,
    subject        text,
    correlation_id text        not null,
    causation_id   text,
    event_time     timestamptz not null,
    created_at     timestamptz not null default statement_timestamp(),
    available_at   timestamptz,
    waits          text        check (waits in ('deferred', 'retry', 'parked', 'held')),
    attempts       integer     not null default 0,
    last_error     text,
    status_at      timestamptz not null default statement_timestamp(),
    constraint pillarbox_outbox_pkey primary key (id)
) with (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05
);

-- id + 0 and not id: no other index can serve what asks for it. A planner that does not see dead rows, or whose
-- statistics are of another hour, would now and then rather walk the primary key, through everything.
-- Fresh messages of a lane, in order.
create index pillarbox_outbox_fresh_idx on pillarbox_outbox (destination, partition, (id + 0)) where waits is null;
-- What became visible after its id was passed.
create index pillarbox_outbox_late_idx on pillarbox_outbox (tx, (id + 0)) where waits is null;
-- Only troubled rows are in the last two.
create index pillarbox_outbox_due_idx on pillarbox_outbox (destination, partition, available_at, id)
    where waits in ('deferred', 'retry');
create index pillarbox_outbox_blocked_idx on pillarbox_outbox (destination, partition, key, (id + 0))
    where waits in ('retry', 'parked', 'held');

create table pillarbox_history (
    id             bigint      not null,
    message_id     uuid        not null,
    destination    text        not null,
    partition      smallint    not null,
    kind           text        not null,
    type           text        not null,
    topic          text        not null,
    key            text,
    payload        bytea,
    content_type   text        not null,
    headers        jsonb,
    source         text        not null,
    subject        text,
    correlation_id text        not null,
    causation_id   text,
    event_time     timestamptz not null,
    created_at     timestamptz not null,
    available_at   timestamptz,
    attempts       integer     not null,
    last_error     text,
    status_at      timestamptz not null,
    status         text        not null check (status in ('delivered', 'failed', 'skipped', 'discarded')),
    relay_id       uuid,
    constraint pillarbox_history_pkey primary key (id)
);

create index pillarbox_history_message_idx on pillarbox_history (message_id);
create index pillarbox_history_status_idx on pillarbox_history (status, status_at, id);

-- One row per batch in flight. A message in a claim is 'sending'.
create table pillarbox_claim (
    relay_id    uuid        not null,
    number      bigint      not null,
    message_ids bigint[]    not null,
    strikes     integer     not null default 0,
    claimed_at  timestamptz not null default statement_timestamp(),
    constraint pillarbox_claim_pkey primary key (relay_id, number)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);

-- Written only when the owner changes.
create table pillarbox_lane (
    destination text     not null,
    partition   smallint not null check (partition between 0 and 63),
    relay_id    uuid,
    epoch       bigint   not null default 0,
    constraint pillarbox_lane_pkey primary key (destination, partition)
);

-- The only row a heartbeat rewrites. fillfactor leaves room to do so in place.
create table pillarbox_relay (
    relay_id     uuid        not null,
    service      text        not null,
    host         text        not null,
    pid          integer     not null,
    version      text        not null,
    destinations text[]      not null,
    reachable    text[]      not null,
    asleep       boolean     not null default false,
    started_at   timestamptz not null,
    expires_at   timestamptz not null,
    constraint pillarbox_relay_pkey primary key (relay_id)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);

create table pillarbox_destination (
    destination text        not null,
    paused_by   text        not null,
    paused_at   timestamptz not null,
    reason      text        not null,
    constraint pillarbox_destination_pkey primary key (destination)
);

-- Failed attempts and what people did; nothing on the happy path.
create table pillarbox_journal (
    id          bigint      generated always as identity,
    message_id  uuid,
    destination text        not null,
    action      text        not null,
    at          timestamptz not null,
    by          text        not null,
    attempt     integer,
    error       text,
    detail      text,
    constraint pillarbox_journal_pkey primary key (id)
);

create index pillarbox_journal_message_idx on pillarbox_journal (message_id, destination);

-- What a consumer has seen. The id is the producer's, so it is text.
create table pillarbox_inbox (
    consumer   text        not null,
    source     text        not null,
    message_id text        not null,
    status     text        not null check (status in ('started', 'done', 'failed')),
    duplicates integer     not null default 0,
    attempts   integer     not null default 0,
    last_error text,
    message    bytea,
    created_at timestamptz not null default statement_timestamp(),
    status_at  timestamptz not null default statement_timestamp(),
    constraint pillarbox_inbox_pkey primary key (consumer, source, message_id)
);

create index pillarbox_inbox_status_idx on pillarbox_inbox (status, status_at);

create table pillarbox_schema (
    version      integer     not null,
    installed_at timestamptz not null default statement_timestamp(),
    constraint pillarbox_schema_pkey primary key (version)
);

-- Every message with the state people see: one place to ask.
create view pillarbox_messages as
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

-- Wakes a relay that has declared itself asleep, and costs a probe of one small table otherwise. Runs as its owner,
-- so that a writer needs no right to see the registry; its search path is nailed down below for the same reason.
create function pillarbox_wake() returns trigger language plpgsql security definer as $$
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

create trigger pillarbox_outbox_wake_trigger after insert on pillarbox_outbox
    for each statement execute function pillarbox_wake();
