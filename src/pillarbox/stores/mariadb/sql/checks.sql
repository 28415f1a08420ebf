-- name: inspect_settings
-- Server settings that can lose messages or change their order.
select @@global.read_only, @@global.innodb_flush_log_at_trx_commit, @@global.log_bin, @@global.sync_binlog,
       @@session.auto_increment_increment

-- name: inspect_galera
-- Whether the server is a node of Galera, and its part of the cluster has a majority. Other servers have no such row.
show global status where variable_name in ('wsrep_ready', 'wsrep_cluster_size', 'wsrep_cluster_status')

-- name: inspect_group
-- How many members of a replication group take part. MariaDB has no such table.
select count(*) from performance_schema.replication_group_members where member_state = 'ONLINE'

-- name: inspect_engines
-- Our tables whose engine has no transactions.
select table_name, engine from information_schema.tables
 where table_schema = coalesce(:schema, database()) and table_name in :tables and engine <> 'InnoDB'
 order by table_name

-- name: inspect_transactions
-- The age of the oldest open transaction, in seconds.
select max(timestampdiff(second, trx_started, now())) from information_schema.innodb_trx

-- name: inspect_counter
-- The last id that AUTO_INCREMENT gave, and the highest id of all messages but those that replace another. The hint: MySQL
-- keeps the answer for a day.
select /*+ set_var(information_schema_stats_expiry = 0) */ auto_increment - 1,
       greatest(coalesce((select max(id) from pillarbox_history where id < 4503599627370496), 0),
                coalesce((select max(id) from pillarbox_outbox), 0))
  from information_schema.tables
 where table_schema = coalesce(:schema, database()) and table_name = :outbox
