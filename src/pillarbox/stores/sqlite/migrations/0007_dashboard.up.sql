-- What a dashboard asks: why messages failed, what people and relays did, how much waits.

-- The error without what differs from message to message. Null: it has not failed, or an older release closed it.
alter table pillarbox_outbox add column fingerprint text;
alter table pillarbox_history add column fingerprint text;
-- Failures by their fingerprint. What is delivered is in neither.
create index pillarbox_outbox_held_idx on pillarbox_outbox (destination, fingerprint, status_at) where waits = 'held';
create index pillarbox_history_failed_idx on pillarbox_history (destination, fingerprint, status_at) where status = 'failed';

-- Why an operator did it, and which messages a bulk action named.
alter table pillarbox_journal add column reason text;
alter table pillarbox_journal add column selection text;
-- Lines that belong to no message: they are listed by themselves, and have a retention of their own.
create index pillarbox_journal_general_idx on pillarbox_journal (id) where message_id is null;

-- Messages that were given back, and the most due ones that were counted.
alter table pillarbox_rollup add column returned integer not null default 0;
alter table pillarbox_rollup add column backlog integer not null default 0;

-- When a person last asked to try a destination at once. Not in the table of pauses: an older relay takes each of its rows for one.
create table pillarbox_probe (
    destination text    not null primary key,
    probed_at   integer not null
) without rowid;
