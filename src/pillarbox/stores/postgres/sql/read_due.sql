-- Deferred and retrying messages of the lanes whose time has come, of each lane the longest due.
-- $1 destination, $2 partitions, $3 now or null, $4 limit, $5 ids to leave out
select o.id, o.message_id, o.destination, o.partition, o.kind, o.type, o.topic, o.key, o.payload, o.content_type, o.headers,
       o.source, o.subject, o.correlation_id, o.causation_id, o.event_time, o.created_at, o.available_at, o.waits,
       o.attempts, o.last_error, o.status_at
  from unnest($2::smallint[]) as l (partition)
 cross join lateral (
        select * from pillarbox_outbox o
         where o.destination = $1 and o.partition = l.partition and o.waits in ('deferred', 'retry')
           and o.available_at <= coalesce($3::timestamptz, statement_timestamp())
           and o.id <> all($5::bigint[])
         order by o.destination, o.partition, o.available_at, o.id
         limit $4
       ) o
