-- name: inspect_settings
-- Server settings that can lose messages or change their order.
select @@global.read_only, @@global.innodb_flush_log_at_trx_commit, @@global.log_bin, @@global.sync_binlog,
       @@session.auto_increment_increment

-- name: inspect_engines
-- Our tables whose engine has no transactions.
select table_name, engine from information_schema.tables
 where table_schema = coalesce(:schema, database()) and table_name in :tables and engine <> 'InnoDB'
 order by table_name

-- name: inspect_transactions
-- The age of the oldest open transaction, in seconds.
select max(timestampdiff(second, trx_started, now())) from information_schema.innodb_trx
