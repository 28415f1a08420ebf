-- Closes delivered messages and takes ids out of their claims, if every lane is still the relay's own.
-- $1 relay, $2 destination, $3 partitions, $4 their epochs, $5 delivered ids, $6 finished claims, $7 touched claims,
-- $8 ids to take out of those, $9 keep, $10 now or null
with lanes as materialized (
    select l.partition
      from unnest($3::smallint[], $4::bigint[]) as f (partition, epoch)
      join pillarbox_lane l on l.destination = $2 and l.partition = f.partition
     where l.relay_id = $1 and l.epoch = f.epoch
       for share of l
), fence as materialized (
    select count(*) = cardinality($3::smallint[]) as holds from lanes
), closed as (
    delete from pillarbox_outbox
     where id = any($5::bigint[]) and destination = $2 and partition = any($3::smallint[]) and (select holds from fence)
    returning *
), kept as (
    insert into pillarbox_history (
        id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status, relay_id)
    select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity'), attempts, last_error, coalesce($10::timestamptz, statement_timestamp()), 'delivered', $1
      from (select id, message_id, destination, partition, kind, type, topic, key,
                   case $9::text when 'full' then payload end as payload, content_type, headers, source, subject,
                   correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error
              from closed) c
     where $9::text <> 'off'
), forgotten as (
    delete from pillarbox_journal j using closed c
     where $9::text = 'off' and j.message_id = c.message_id and j.destination = c.destination
), finished as (
    delete from pillarbox_claim
     where relay_id = $1 and number = any($6::bigint[]) and (select holds from fence)
), touched as (
    update pillarbox_claim
       set message_ids = array(select unnest(message_ids) except select unnest($8::bigint[]))
     where relay_id = $1 and number = any($7::bigint[]) and (select holds from fence)
)
select partition from lanes
