-- Removes everything, messages included.
drop view pillarbox_messages;
drop table pillarbox_outbox, pillarbox_history, pillarbox_claim, pillarbox_lane, pillarbox_relay,
    pillarbox_destination, pillarbox_journal, pillarbox_inbox, pillarbox_schema;
drop function pillarbox_wake();
