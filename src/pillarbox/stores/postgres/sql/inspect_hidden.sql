-- How many sessions in this database are other people's, and show this login nothing of themselves.
select count(*)
  from pg_stat_activity
 where datname = current_database() and pid <> pg_backend_pid() and backend_type is null
