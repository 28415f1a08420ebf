-- name: inspect_counter
-- The last id that AUTOINCREMENT gave, and the highest id of all messages but those that replace another.
select max(coalesce((select seq from sqlite_sequence where name = trim('pillarbox_outbox', '"')), 0),
           coalesce((select max(id) from pillarbox_outbox), 0)),
       coalesce((select max(id) from pillarbox_history where id < 4503599627370496), 0)
