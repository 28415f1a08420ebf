-- The first version. Times are whole microseconds since 1970 UTC; message ids and relay ids are text.

-- Open messages only. AUTOINCREMENT: an id that was used once never comes again.
create table pillarbox_outbox (
    id             integer primary key autoincrement,
    message_id     text    not null,
    destination    text    not null,
    partition      integer not null check (partition between 0 and 63),
    kind           text    not null check (kind in ('event', 'command')),
    type           text    not null,
    topic          text    not null,
    key            text,
    payload        blob    not null,
    content_type   text    not null,
    headers        text,
    source         text    not null,
    subject        text,
    correlation_id text    not null,
    causation_id   text,
    event_time     integer not null,
    created_at     integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    available_at   integer,
    waits          text    check (waits in ('deferred', 'retry', 'parked', 'held')),
    attempts       integer not null default 0,
    last_error     text,
    status_at      integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer))
);

-- Fresh messages of a lane, in order.
create index pillarbox_outbox_fresh_idx on pillarbox_outbox (destination, partition, id) where waits is null;
-- Only troubled rows are in the last two.
create index pillarbox_outbox_due_idx on pillarbox_outbox (destination, partition, available_at, id)
    where waits in ('deferred', 'retry');
create index pillarbox_outbox_blocked_idx on pillarbox_outbox (destination, partition, key, id)
    where waits in ('retry', 'parked', 'held');

create table pillarbox_history (
    id             integer primary key,
    message_id     text    not null,
    destination    text    not null,
    partition      integer not null,
    kind           text    not null,
    type           text    not null,
    topic          text    not null,
    key            text,
    payload        blob,
    content_type   text    not null,
    headers        text,
    source         text    not null,
    subject        text,
    correlation_id text    not null,
    causation_id   text,
    event_time     integer not null,
    created_at     integer not null,
    available_at   integer,
    attempts       integer not null,
    last_error     text,
    status_at      integer not null,
    status         text    not null check (status in ('delivered', 'failed', 'skipped', 'discarded')),
    relay_id       text
);

create index pillarbox_history_message_idx on pillarbox_history (message_id);
create index pillarbox_history_status_idx on pillarbox_history (status, status_at, id);

-- One row per batch in flight. A message in a claim is 'sending'. message_ids is a JSON array.
create table pillarbox_claim (
    relay_id    text    not null,
    number      integer not null,
    message_ids text    not null,
    strikes     integer not null default 0,
    claimed_at  integer not null,
    primary key (relay_id, number)
) without rowid;

-- Written only when the owner changes.
create table pillarbox_lane (
    destination text    not null,
    partition   integer not null check (partition between 0 and 63),
    relay_id    text,
    epoch       integer not null default 0,
    primary key (destination, partition)
) without rowid;

-- The only row a heartbeat rewrites. destinations and reachable are JSON arrays.
create table pillarbox_relay (
    relay_id     text    not null primary key,
    service      text    not null,
    host         text    not null,
    pid          integer not null,
    version      text    not null,
    destinations text    not null,
    reachable    text    not null,
    asleep       integer not null default 0,
    started_at   integer not null,
    expires_at   integer not null
) without rowid;

create table pillarbox_destination (
    destination text    not null primary key,
    paused_by   text    not null,
    paused_at   integer not null,
    reason      text    not null
) without rowid;

-- Failed attempts and what people did; nothing on the happy path.
create table pillarbox_journal (
    id          integer primary key autoincrement,
    message_id  text,
    destination text    not null,
    action      text    not null,
    at          integer not null,
    by          text    not null,
    attempt     integer,
    error       text,
    detail      text
);

create index pillarbox_journal_message_idx on pillarbox_journal (message_id, destination);

-- What a consumer has seen. The id is the producer's.
create table pillarbox_inbox (
    consumer   text    not null,
    source     text    not null,
    message_id text    not null,
    status     text    not null check (status in ('started', 'done', 'failed')),
    duplicates integer not null default 0,
    attempts   integer not null default 0,
    last_error text,
    message    blob,
    created_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    status_at  integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    primary key (consumer, source, message_id)
) without rowid;

create index pillarbox_inbox_status_idx on pillarbox_inbox (status, status_at);

create table pillarbox_schema (
    version      integer primary key,
    installed_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer))
);

-- Every message with the state people see: one place to ask. available_at of a parked one is shown as null.
create view pillarbox_messages as
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 9223372036854775807) as available_at,
       waits, attempts, last_error, status_at,
       case when waits = 'held' then 'failed'
            when id in (select value from pillarbox_claim, json_each(message_ids)) then 'sending'
            else 'pending' end as state
  from pillarbox_outbox
union all
select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at,
       null, attempts, last_error, status_at, status
  from pillarbox_history;
