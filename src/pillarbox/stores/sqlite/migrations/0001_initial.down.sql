-- Removes everything, messages included.
drop view pillarbox_messages;
drop table pillarbox_outbox;
drop table pillarbox_history;
drop table pillarbox_claim;
drop table pillarbox_lane;
drop table pillarbox_relay;
drop table pillarbox_destination;
drop table pillarbox_journal;
drop table pillarbox_inbox;
drop table pillarbox_schema;
