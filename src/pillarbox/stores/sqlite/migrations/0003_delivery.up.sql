-- Messages remember since when they could have gone, and relays count what they settle.

-- --- counts: ages, counters, and what finds them ---

-- When a waiting message first could have gone. Null: when it was written, or the time that its writer chose.
alter table pillarbox_outbox add column due_at integer;
update pillarbox_outbox set due_at = created_at where waits in ('retry', 'parked');

-- The longest waiting message of a destination, by the reason it waits for. Fresh ones are not in it.
create index pillarbox_outbox_since_idx on pillarbox_outbox
    (destination, waits, coalesce(due_at, case waits when 'deferred' then available_at end, created_at)) where waits is not null;
-- What was not delivered, by destination. Deliveries are not in it.
create index pillarbox_history_ended_idx on pillarbox_history (status, destination, status_at, id)
    where status in ('failed', 'skipped', 'discarded');

-- Counters of each destination and minute. Each relay writes rows of its own, so that none waits for another; operators
-- write the row of relay 0. Times in seconds. Each of the last columns counts the deliveries that took at least the bound
-- before it, and less than its own.
create table pillarbox_rollup (
    minute         integer not null,
    destination    text    not null,
    relay_id       text    not null,
    delivered      integer not null default 0,
    failed         integer not null default 0,
    retried        integer not null default 0,
    discarded      integer not null default 0,
    latency_sum    real    not null default 0,
    latency_max    real    not null default 0,
    end_to_end_sum real    not null default 0,
    end_to_end_max real    not null default 0,
    under_5ms      integer not null default 0,
    under_10ms     integer not null default 0,
    under_25ms     integer not null default 0,
    under_50ms     integer not null default 0,
    under_100ms    integer not null default 0,
    under_250ms    integer not null default 0,
    under_500ms    integer not null default 0,
    under_1s       integer not null default 0,
    under_2500ms   integer not null default 0,
    under_5s       integer not null default 0,
    under_10s      integer not null default 0,
    under_30s      integer not null default 0,
    under_1m       integer not null default 0,
    under_5m       integer not null default 0,
    under_30m      integer not null default 0,
    from_30m       integer not null default 0,
    primary key (minute, destination, relay_id)
) without rowid;

-- What belongs together.
create index pillarbox_outbox_corr_idx on pillarbox_outbox (correlation_id);
create index pillarbox_history_corr_idx on pillarbox_history (correlation_id);
