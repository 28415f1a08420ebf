-- Those of our tables that have no transactions.
select table_name, engine from information_schema.tables
 where table_schema = coalesce(%(schema)s, database()) and table_name in %(tables)s and engine <> 'InnoDB'
 order by table_name
