-- The first version. Times are whole microseconds since 1970 UTC: a datetime would change with the time zone of the
-- session that writes it. MySQL commits after each of these statements, so each can be run again.

-- The first one: without a version in it, this step was interrupted. A version is recorded last.
create table if not exists pillarbox_schema (
    version      integer not null,
    installed_at bigint  not null default (timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))),
    primary key (version)
) engine = InnoDB default character set utf8mb4 collate utf8mb4_bin;

-- Open messages only.
create table if not exists pillarbox_outbox (
    id             bigint        not null auto_increment,
    message_id     char(36)      character set ascii collate ascii_bin not null,
    destination    varchar(100)  character set ascii collate ascii_bin not null,
    `partition`    smallint      not null check (`partition` between 0 and 63),
    kind           varchar(8)    not null check (kind in ('event', 'command')),
    type           varchar(255)  not null,
    topic          varchar(255)  not null,
    `key`          varchar(1024),
    payload        longblob      not null,
    content_type   varchar(255)  not null,
    headers        json,
    source         varchar(1024) not null,
    subject        varchar(1024),
    correlation_id varchar(1024) not null,
    causation_id   varchar(1024),
    event_time     bigint        not null,
    created_at     bigint        not null default (timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))),
    available_at   bigint,
    waits          varchar(8)    character set ascii collate ascii_bin check (waits in ('deferred', 'retry', 'parked', 'held')),
    attempts       integer       not null default 0,
    last_error     longtext,
    status_at      bigint        not null default (timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))),
    blocked_key    varbinary(1024) generated always as (case when waits in ('retry', 'parked', 'held') then `key` end) virtual,
    primary key (id),
    -- Fresh messages of a lane in order, for they have no time; and those that wait for one, by time.
    index pillarbox_outbox_waiting_idx (waits, destination, `partition`, available_at, id),
    index pillarbox_outbox_blocked_idx (destination, `partition`, blocked_key, id)
) engine = InnoDB default character set utf8mb4 collate utf8mb4_bin;

create table if not exists pillarbox_history (
    id             bigint        not null,
    message_id     char(36)      character set ascii collate ascii_bin not null,
    destination    varchar(100)  character set ascii collate ascii_bin not null,
    `partition`    smallint      not null,
    kind           varchar(8)    not null,
    type           varchar(255)  not null,
    topic          varchar(255)  not null,
    `key`          varchar(1024),
    payload        longblob,
    content_type   varchar(255)  not null,
    headers        json,
    source         varchar(1024) not null,
    subject        varchar(1024),
    correlation_id varchar(1024) not null,
    causation_id   varchar(1024),
    event_time     bigint        not null,
    created_at     bigint        not null,
    available_at   bigint,
    attempts       integer       not null,
    last_error     longtext,
    status_at      bigint        not null,
    status         varchar(10)   character set ascii collate ascii_bin not null
                                 check (status in ('delivered', 'failed', 'skipped', 'discarded')),
    relay_id       char(36)      character set ascii collate ascii_bin,
    primary key (id),
    index pillarbox_history_message_idx (message_id),
    index pillarbox_history_status_idx (status, status_at, id)
) engine = InnoDB default character set utf8mb4 collate utf8mb4_bin;

-- One row per batch in flight. A message in a claim is 'sending'. message_ids is a JSON array.
create table if not exists pillarbox_claim (
    relay_id    char(36) character set ascii collate ascii_bin not null,
    number      bigint   not null,
    message_ids json     not null,
    strikes     integer  not null default 0,
    claimed_at  bigint   not null,
    primary key (relay_id, number)
) engine = InnoDB default character set utf8mb4 collate utf8mb4_bin;

-- Written only when the owner changes.
create table if not exists pillarbox_lane (
    destination varchar(100) character set ascii collate ascii_bin not null,
    `partition` smallint     not null check (`partition` between 0 and 63),
    relay_id    char(36)     character set ascii collate ascii_bin,
    epoch       bigint       not null default 0,
    primary key (destination, `partition`)
) engine = InnoDB default character set utf8mb4 collate utf8mb4_bin;

-- The only row a heartbeat rewrites. destinations and reachable are JSON arrays.
create table if not exists pillarbox_relay (
    relay_id     char(36) character set ascii collate ascii_bin not null,
    service      text     not null,
    host         text     not null,
    pid          integer  not null,
    version      text     not null,
    destinations json     not null,
    reachable    json     not null,
    asleep       boolean  not null default false,
    started_at   bigint   not null,
    expires_at   bigint   not null,
    primary key (relay_id)
) engine = InnoDB default character set utf8mb4 collate utf8mb4_bin;

create table if not exists pillarbox_destination (
    destination varchar(100) character set ascii collate ascii_bin not null,
    paused_by   text         not null,
    paused_at   bigint       not null,
    reason      text         not null,
    primary key (destination)
) engine = InnoDB default character set utf8mb4 collate utf8mb4_bin;

-- Failed attempts and what people did; nothing on the happy path.
create table if not exists pillarbox_journal (
    id          bigint   not null auto_increment,
    message_id  char(36) character set ascii collate ascii_bin,
    destination text     not null,
    action      text     not null,
    at          bigint   not null,
    `by`        text     not null,
    attempt     integer,
    error       longtext,
    detail      longtext,
    primary key (id),
    index pillarbox_journal_message_idx (message_id)
) engine = InnoDB default character set utf8mb4 collate utf8mb4_bin;

-- What a consumer has seen. Whose message it is must match to the byte: texts would match with spaces behind them too.
create table if not exists pillarbox_inbox (
    consumer   varbinary(800)  not null,
    source     varbinary(1024) not null,
    message_id varbinary(1024) not null,
    status     varchar(8)      character set ascii collate ascii_bin not null
                               check (status in ('started', 'done', 'failed')),
    duplicates integer         not null default 0,
    attempts   integer         not null default 0,
    last_error longtext,
    message    longblob,
    created_at bigint          not null default (timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))),
    status_at  bigint          not null default (timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))),
    primary key (consumer, source, message_id),
    index pillarbox_inbox_status_idx (status, status_at)
) engine = InnoDB default character set utf8mb4 collate utf8mb4_bin;

-- What writers lock that serialise their keys: the first byte of md5(key).
create table if not exists pillarbox_slot (
    slot smallint not null,
    primary key (slot)
) engine = InnoDB default character set utf8mb4 collate utf8mb4_bin;

insert ignore into pillarbox_slot (slot)
with recursive every (slot) as (select 0 union all select slot + 1 from every where slot < 255)
select slot from every;

-- Every message with the state people see: one place to ask. available_at of a parked one is shown as null.
create or replace view pillarbox_messages as
select id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 9223372036854775807) as available_at,
       waits, attempts, last_error, status_at,
       case when waits = 'held' then 'failed'
            when id in (select claimed.id from pillarbox_claim
                         cross join json_table(message_ids, '$[*]' columns (id bigint path '$')) as claimed) then 'sending'
            else 'pending' end as state
  from pillarbox_outbox
union all
select id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at,
       null, attempts, last_error, status_at, status
  from pillarbox_history;
