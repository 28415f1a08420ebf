-- name: park
-- Park fresh and deferred messages behind an earlier one of their key; parked messages have no due time.
update pillarbox_outbox
   set waits = 'parked', available_at = 9223372036854775807, status_at = :now
 where id in :ids and (waits is null or waits = 'deferred')
   and destination = :destination and `partition` in :partitions

-- name: keep_delivered
-- Copy delivered messages into the history, with or without their payload.
insert into pillarbox_history (
       id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status, relay_id)
select id, message_id, destination, `partition`, kind, type, topic, `key`, case :keep when 'full' then payload end, content_type,
       headers, source, subject, correlation_id, causation_id, event_time, created_at,
       nullif(available_at, 9223372036854775807), attempts, last_error, :now, 'delivered', :relay_id
  from pillarbox_outbox
 where id in :ids
   and destination = :destination and `partition` in :partitions

-- name: close_delivered
-- Delete delivered messages from the open table, after they were copied if they are kept.
delete from pillarbox_outbox
 where id in :ids
   and destination = :destination and `partition` in :partitions

-- name: read_message_ids
-- Return the message ids of rows that are still open in these lanes, for the journal.
select id, message_id from pillarbox_outbox
 where id in :ids
   and destination = :destination and `partition` in :partitions

-- name: failure_keep
-- Copy an undelivered message into the history, always with its payload: it can be redriven.
insert into pillarbox_history (
       id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status, relay_id)
select id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 9223372036854775807),
       :attempts, coalesce(:error, last_error), :now, :state, :relay_id
  from pillarbox_outbox
 where id = :id
   and destination = :destination and `partition` in :partitions

-- name: failure_close
-- Delete an undelivered message from the open table, after it was copied.
delete from pillarbox_outbox
 where id = :id
   and destination = :destination and `partition` in :partitions

-- name: claimed_messages
-- Read the claimed messages that are still open in these lanes.
select id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at
  from pillarbox_outbox
 where id in :ids
   and destination = :destination and `partition` in :partitions
 order by id

-- name: claims_finish
-- Delete claims that have no message left.
delete from pillarbox_claim
 where relay_id = :relay_id and number in :numbers

-- name: claims_trim
-- Replace the ids of a claim after some of its messages were settled.
update pillarbox_claim set message_ids = :message_ids
 where relay_id = :relay_id and number in :numbers

-- name: ids_in_lanes
-- Return the ids that are open in these lanes.
select id from pillarbox_outbox
 where id in :ids
   and destination = :destination and `partition` in :partitions

-- name: claims_leave
-- Delete every claim of a relay that leaves.
delete from pillarbox_claim where relay_id = :relay_id
