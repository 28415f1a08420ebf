-- Deferred and retrying messages of the lanes whose time has come, longest due first. Finds the ids before it fetches.
with due as materialized (
    select d.id, d.available_at
      from json_each(:partitions) as lane
     cross join pillarbox_outbox as d
        on d.id in (
            select o.id from pillarbox_outbox as o
             where o.destination = :destination and o.partition = lane.value and o.waits in ('deferred', 'retry')
               and o.available_at <= :now
               and o.id not in (select value from json_each(:skip))
             order by o.available_at, o.id
             limit :limit
           )
     order by d.available_at, d.id
     limit :limit
)
select m.id, m.message_id, m.destination, m.partition, m.kind, m.type, m.topic, m.key, m.payload, m.content_type, m.headers,
       m.source, m.subject, m.correlation_id, m.causation_id, m.event_time, m.created_at, m.available_at, m.waits,
       m.attempts, m.last_error, m.status_at
  from due
 cross join pillarbox_outbox as m on m.id = due.id
 order by due.available_at, due.id
