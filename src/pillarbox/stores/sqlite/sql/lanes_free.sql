-- Those of the lanes that nobody alive owns, or that are the relay's own.
select l.partition, l.relay_id
  from pillarbox_lane as l
 where l.destination = :destination and l.partition in (select value from json_each(:partitions))
   and (l.relay_id is null or l.relay_id = :relay_id
        or not exists (
            select 1 from pillarbox_relay as r
             where r.relay_id = l.relay_id and r.expires_at > :now and r.expires_at <= :now + :lease))
