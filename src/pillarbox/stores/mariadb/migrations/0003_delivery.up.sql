-- Messages remember since when they could have gone, and relays count what they settle.

-- --- counts: ages, counters, and what finds them ---

-- When a waiting message first could have gone. Null: when it was written, or the time that its writer chose.
alter table pillarbox_outbox add column due_at bigint;
update pillarbox_outbox set due_at = created_at where waits in ('retry', 'parked');
create or replace sql security definer view pillarbox_shown_outbox as
select id, message_id, destination, `partition`, kind, type, topic, `key`, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at, due_at
  from pillarbox_outbox;

-- By destination too: what was not delivered is counted for each. Instead of the index without it, for every delivery
-- pays for each index.
alter table pillarbox_history
    add index pillarbox_history_ended_idx (status, destination, status_at, id), drop index pillarbox_history_status_idx;

-- Counters of each destination and minute. Each relay writes rows of its own, so that none waits for another; operators
-- write the row of relay 0. Times in seconds. Each of the last columns counts the deliveries that took at least the bound
-- before it, and less than its own.
create table if not exists pillarbox_rollup (
    minute         bigint       not null,
    destination    varchar(100) character set ascii collate ascii_bin not null,
    relay_id       char(36)     character set ascii collate ascii_bin not null,
    delivered      bigint       not null default 0,
    failed         bigint       not null default 0,
    retried        bigint       not null default 0,
    discarded      bigint       not null default 0,
    latency_sum    double       not null default 0,
    latency_max    double       not null default 0,
    end_to_end_sum double       not null default 0,
    end_to_end_max double       not null default 0,
    under_5ms      bigint       not null default 0,
    under_10ms     bigint       not null default 0,
    under_25ms     bigint       not null default 0,
    under_50ms     bigint       not null default 0,
    under_100ms    bigint       not null default 0,
    under_250ms    bigint       not null default 0,
    under_500ms    bigint       not null default 0,
    under_1s       bigint       not null default 0,
    under_2500ms   bigint       not null default 0,
    under_5s       bigint       not null default 0,
    under_10s      bigint       not null default 0,
    under_30s      bigint       not null default 0,
    under_1m       bigint       not null default 0,
    under_5m       bigint       not null default 0,
    under_30m      bigint       not null default 0,
    from_30m       bigint       not null default 0,
    primary key (minute, destination, relay_id)
) engine = InnoDB default character set utf8mb4 collate utf8mb4_bin;

-- What belongs together. Beginnings, because an index takes no text of any length.
alter table pillarbox_outbox add index pillarbox_outbox_corr_idx (correlation_id(64));
alter table pillarbox_history add index pillarbox_history_corr_idx (correlation_id(64));
