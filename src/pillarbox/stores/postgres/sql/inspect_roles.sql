-- What was set for roles about waiting at a commit: the writers of this database may be among them.
select coalesce(r.rolname, 'every role') as role, split_part(c.setting, '=', 2) as synchronous_commit
  from pg_db_role_setting s
  left join pg_roles r on r.oid = s.setrole
 cross join unnest(s.setconfig) c (setting)
 where c.setting like 'synchronous\_commit=%'
   and s.setdatabase in (0, (select oid from pg_database where datname = current_database()))
 order by 1, 2
