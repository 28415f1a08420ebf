-- What the server is set to, of what can lose messages or their order.
select @@global.read_only, @@global.innodb_flush_log_at_trx_commit, @@global.log_bin, @@global.sync_binlog,
       @@session.auto_increment_increment
