-- As read_ahead, without the keys to skip, and with the highest id of each lane above its mark.
select cast(lane.key as integer), (
    select json_group_array(id)
      from (select o.id from pillarbox_outbox as o
             where o.destination = :destination and o.partition = cast(lane.key as integer) and o.id > lane.value
               and o.waits is null
               and (o.key is null or o.key not in (select value from json_each(:skip)))
             order by o.id
             limit :limit)
), (
    select max(o.id) from pillarbox_outbox as o
     where o.destination = :destination and o.partition = cast(lane.key as integer) and o.id > lane.value
       and o.waits is null
)
  from json_each(:low) as lane
