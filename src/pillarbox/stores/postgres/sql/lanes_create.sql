-- A lane's row exists from the first time a relay wants it. $1 destination, $2 partitions
insert into pillarbox_lane (destination, partition)
select $1, partition from unnest($2::smallint[]) as l (partition)
 order by partition
    on conflict (destination, partition) do nothing
