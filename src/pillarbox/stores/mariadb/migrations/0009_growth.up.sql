-- What relays of many stores and clusters need, and what lookups cost less.
-- readable from: 9
-- writable from: 9
-- runs on: 9

-- The oldest releases that may read and write the tables, so that an older one knows what a version allows which it does
-- not know. Null: its own version, as for all versions before this one.
alter table pillarbox_schema add column readable_from integer;
alter table pillarbox_schema add column writable_from integer;
