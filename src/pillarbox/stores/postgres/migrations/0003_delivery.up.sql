-- Messages remember since when they could have gone, and relays count what they settle.

-- --- counts: ages, counters, and what finds them ---

-- When a waiting message first could have gone. Null: when it was written, or the time that its writer chose.
alter table pillarbox_outbox add column due_at timestamptz;
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
    minute         timestamptz      not null,
    destination    text             not null,
    relay_id       uuid             not null,
    delivered      bigint           not null default 0,
    failed         bigint           not null default 0,
    retried        bigint           not null default 0,
    discarded      bigint           not null default 0,
    latency_sum    double precision not null default 0,
    latency_max    double precision not null default 0,
    end_to_end_sum double precision not null default 0,
    end_to_end_max double precision not null default 0,
    under_5ms      bigint           not null default 0,
    under_10ms     bigint           not null default 0,
    under_25ms     bigint           not null default 0,
    under_50ms     bigint           not null default 0,
    under_100ms    bigint           not null default 0,
    under_250ms    bigint           not null default 0,
    under_500ms    bigint           not null default 0,
    under_1s       bigint           not null default 0,
    under_2500ms   bigint           not null default 0,
    under_5s       bigint           not null default 0,
    under_10s      bigint           not null default 0,
    under_30s      bigint           not null default 0,
    under_1m       bigint           not null default 0,
    under_5m       bigint           not null default 0,
    under_30m      bigint           not null default 0,
    from_30m       bigint           not null default 0,
    constraint pillarbox_rollup_pkey primary key (minute, destination, relay_id)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);

-- What belongs together. Beginnings, because an index takes no text of any length.
create index pillarbox_outbox_corr_idx on pillarbox_outbox (left(correlation_id, 64));
create index pillarbox_history_corr_idx on pillarbox_history (left(correlation_id, 64));
