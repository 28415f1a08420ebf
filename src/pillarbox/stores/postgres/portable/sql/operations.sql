-- name: purge_rollups
-- Deletes the counters of old minutes, found by their key: not every server has places of rows. $1 how old, $2 limit,
-- $3 now or null
with old as (
    select minute, destination, relay_id from pillarbox_rollup
     where minute <= coalesce($3::timestamptz, statement_timestamp()) - $1::interval
     order by minute
     limit $2
       for update skip locked
), gone as (
    delete from pillarbox_rollup r
     using old
     where r.minute = old.minute and r.destination = old.destination and r.relay_id = old.relay_id
    returning 1
)
select count(*) from gone

-- name: inspect_transactions
-- Messages name no transaction here.
select false

-- name: tables
-- The tables that are there, without sizes: every server keeps those elsewhere. $1 names, as to_regclass takes them
select t.name, null::bigint, null::bigint, null::bigint
  from unnest($1::text[]) as t (name)
 where to_regclass(t.name) is not null
