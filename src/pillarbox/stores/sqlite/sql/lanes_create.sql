-- A lane's row exists from the first time a relay wants it.
insert into pillarbox_lane (destination, partition)
select :destination, value from json_each(:partitions)
 where true
    on conflict (destination, partition) do nothing
