-- What the server promises about a commit, as sessions of this login begin with it.
select pg_is_in_recovery() as in_recovery,
       bool_or(name = 'default_transaction_read_only' and reset_val = 'on') as read_only,
       bool_or(name = 'fsync' and setting = 'on') as fsync,
       bool_or(name = 'full_page_writes' and setting = 'on') as full_page_writes,
       max(reset_val) filter (where name = 'synchronous_commit') as synchronous_commit,
       max(setting) filter (where name = 'synchronous_standby_names') as synchronous_standbys,
       (select count(*) from pg_stat_replication) as standbys,
       current_user as login
  from pg_settings
 where name in ('default_transaction_read_only', 'fsync', 'full_page_writes', 'synchronous_commit',
                'synchronous_standby_names')
