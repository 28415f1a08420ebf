-- A relay's own lease is kept in its row, writers that use two-phase commit are not notified for, and the function
-- that wakes relays is its owner's alone.

-- Null in a row that an older release wrote: then the reader's own lease decides.
alter table pillarbox_relay add column lease interval;

-- Rises with every operator's change of open messages in the lane, so that a relay sends nothing that it read before.
alter table pillarbox_lane add column revision bigint not null default 0;

-- A transaction that has sent a notification cannot be prepared (0A000). So the trigger sends none where the server
-- allows prepared transactions, unless the session's setting pillarbox.notify says otherwise. Relays then poll.
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

-- Replacing a function resets its search path.
do $$
begin
    execute format(
        'alter function %s set search_path = %I, pg_temp',
        'pillarbox_wake()'::regprocedure,
        (select nspname from pg_class join pg_namespace n on n.oid = relnamespace
          where pg_class.oid = 'pillarbox_outbox'::regclass));
end
$$;

-- It runs with the owner's rights, so nobody else may hang it on a table of his own. A trigger that exists needs no right.
revoke execute on function pillarbox_wake() from public;

-- Rules for what others write. They hold for fresh rows: a row that was there before, or that an operator reopens, must
-- never be refused when it is parked, put off or sent again. NOT VALID for the same reason: the upgrade reads no row.
-- What breaks a rule that is not checked here is closed as failed by the relay that reads it.
alter table pillarbox_outbox
    -- No relay serves another destination, so none would close it.
    add constraint pillarbox_outbox_destination_chk check (
        coalesce(waits in ('retry', 'parked', 'held'), false) or destination ~ '^(_skipped|[A-Za-z][A-Za-z0-9_.-]{0,99})$') not valid,
    add constraint pillarbox_outbox_headers_chk check (waits is not null or jsonb_typeof(headers) = 'object') not valid,
    add constraint pillarbox_outbox_lengths_chk check (
        waits is not null or (
            octet_length(type) between 1 and 255 and octet_length(topic) between 1 and 255
            and octet_length(content_type) between 1 and 255 and octet_length(key) <= 1024
            and octet_length(source) between 1 and 1024 and octet_length(subject) between 1 and 1024
            and octet_length(correlation_id) between 1 and 1024 and octet_length(causation_id) between 1 and 1024)) not valid,
    add constraint pillarbox_outbox_times_chk check (
        waits is not null
        or event_time >= '0001-01-01 00:00:00+00'::timestamptz and event_time < '9999-12-31 00:00:00+00'::timestamptz) not valid,
    -- What waits without a time, or behind a message of no key, would wait for ever.
    add constraint pillarbox_outbox_waits_chk check (
        waits is null or waits in ('deferred', 'retry') and coalesce(isfinite(available_at), false)
        or waits = 'parked' and key is not null or waits = 'held') not valid;
