-- Removes everything, messages included.
drop view if exists pillarbox_messages;
drop table if exists pillarbox_outbox, pillarbox_history, pillarbox_claim, pillarbox_lane, pillarbox_relay,
    pillarbox_destination, pillarbox_journal, pillarbox_inbox, pillarbox_slot;
drop table if exists pillarbox_schema;
