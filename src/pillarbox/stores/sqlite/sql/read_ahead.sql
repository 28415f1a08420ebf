-- The ids of the next fresh messages of each lane above its mark. The index alone tells.
-- low is a JSON object, partition to mark, in the order of turns
select cast(lane.key as integer), (
    select json_group_array(id)
      from (select o.id from pillarbox_outbox as o
             where o.destination = :destination and o.partition = cast(lane.key as integer) and o.id > lane.value
               and o.waits is null
             order by o.id
             limit :limit)
), 0
  from json_each(:low) as lane
