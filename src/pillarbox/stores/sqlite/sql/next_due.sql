-- When the next deferred or retrying message of the lanes comes due: one probe per lane.
select min((
    select o.available_at from pillarbox_outbox as o
     where o.destination = :destination and o.partition = lane.value and o.waits in ('deferred', 'retry')
     order by o.available_at
     limit 1
))
  from json_each(:partitions) as lane
