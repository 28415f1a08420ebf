-- name: handoff_server
-- What a connector must know about this server. $1 the quoted name of the outbox
select current_setting('server_version_num')::integer / 10000, current_setting('wal_level'),
       (select relnamespace::regnamespace::text from pg_class where oid = $1::text::regclass), current_database()

-- name: handoff_slot
-- One slot of this database as JSON, for its columns differ between versions; the position that its reader has confirmed,
-- and the bytes of log that are kept for it. $1 name
select to_jsonb(s)::text, pg_wal_lsn_diff(s.confirmed_flush_lsn, '0/0')::bigint,
       pg_wal_lsn_diff(l.now, s.restart_lsn)::bigint
  from pg_replication_slots s
 cross join (select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end) l (now)
 where s.slot_name = $1 and s.slot_type = 'logical' and s.database = current_database()

-- name: handoff_mark
-- A snapshot, and a position of the log that is not before any commit in it: a commit is written to the log before others
-- can see it, and a statement's snapshot is taken before its functions are called.
select pg_current_snapshot()::text, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint

-- name: handoff_prune
-- Deletes open messages of a handed-off destination among the next ids, with their journal; returns how many, and the
-- last id that it looked at. A destination's messages may be few among many: a step is bounded by what it reads.
-- $1 destination, $2 snapshot or null, $3 how old, $4 after which id, $5 limit, $6 now or null
with walked as materialized (
    select id, destination, tx, created_at from pillarbox_outbox
     where id > $4::bigint
     order by id
     limit $5
), gone as (
    delete from pillarbox_outbox
     where id = any(array(select id from walked
                           where destination = $1
                             and ($2::text is null or pg_visible_in_snapshot(tx, $2::text::pg_snapshot))
                             and created_at <= coalesce($6::timestamptz, statement_timestamp()) - $3::interval))
    returning message_id, destination
), told as (
    delete from pillarbox_journal j using gone where j.message_id = gone.message_id and j.destination = gone.destination
)
select (select count(*) from gone), (select max(id) from walked)

-- name: handoff_inspect
-- The settings that decide how much log is kept, the standbys, and one publication with its filter as JSON, for its
-- columns differ between versions. $1 publication, $2 schema, $3 table
select current_setting('max_slot_wal_keep_size'),
       (select count(*) from pg_replication_slots where slot_type = 'physical'),
       p.pubinsert, to_jsonb(t) ->> 'rowfilter', t.tablename is not null
  from (select) one
  left join pg_publication p on p.pubname = $1
  left join pg_publication_tables t on t.pubname = p.pubname and t.schemaname = $2 and t.tablename = $3

-- name: handoff_idle_slots
-- Logical slots that nobody reads, with the bytes of log that are kept for each.
select slot_name::text, pg_wal_lsn_diff(l.now, restart_lsn)::bigint
  from pg_replication_slots
 cross join (select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end) l (now)
 where slot_type = 'logical' and not active and restart_lsn is not null
 order by 1
