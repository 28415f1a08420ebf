-- What relays of many stores and clusters need, and what lookups cost less.

alter table pillarbox_schema drop column readable_from;
alter table pillarbox_schema drop column writable_from;
