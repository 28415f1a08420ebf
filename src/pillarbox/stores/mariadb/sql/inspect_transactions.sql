-- How old the oldest transaction is, in seconds.
select max(timestampdiff(second, trx_started, now())) from information_schema.innodb_trx
