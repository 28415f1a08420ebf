-- Removes the rules for what others write.
alter table pillarbox_outbox
    drop constraint pillarbox_outbox_headers_chk,
    drop constraint pillarbox_outbox_destination_chk,
    drop constraint pillarbox_outbox_waits_chk;

-- Forgets the leases of relays, and which consumers an account may be.
drop view if exists pillarbox_own_inbox, pillarbox_shown_inbox, pillarbox_shown_history, pillarbox_shown_outbox;
drop table if exists pillarbox_consumer;
alter table pillarbox_slot modify slot smallint not null;
alter table pillarbox_lane drop column revision;
alter table pillarbox_relay drop column lease;
