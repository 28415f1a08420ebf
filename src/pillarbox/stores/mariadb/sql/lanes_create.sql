-- A lane's row exists from the first time a relay wants it. Asks first: a row that is there would be locked.
insert ignore into pillarbox_lane (destination, `partition`)
with recursive every (number) as (select 0 union all select number + 1 from every where number < 63)
select %(destination)s, number from every
 where number in %(partitions)s
   and not exists (select 1 from pillarbox_lane as l where l.destination = %(destination)s and l.`partition` = number)
