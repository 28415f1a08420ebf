-- Who keeps dead rows of this database from being removed: open and prepared transactions, the oldest first. A session
-- that this login may not look into has no state.
select who, age
  from (select format('session %s of %s (%s)', pid, usename, state) as who, clock_timestamp() - xact_start as age
          from pg_stat_activity
         where datname = current_database() and pid <> pg_backend_pid()
           and (backend_xmin is not null or backend_xid is not null) and xact_start is not null
        union all
        select format('prepared transaction %L of %s', gid, owner), clock_timestamp() - prepared
          from pg_prepared_xacts
         where database = current_database()) pins
 order by age desc
 limit 5
