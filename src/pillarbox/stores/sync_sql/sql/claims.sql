-- name: park
-- Park fresh and deferred messages behind an earlier one of their key; parked messages have no due time.
update pillarbox_outbox
   set due_at = coalesce(due_at, case waits when 'deferred' then available_at end, created_at), waits = 'parked',
       available_at = 9223372036854775807, status_at = :now
 where id in :ids and coalesce(waits, 'deferred') = 'deferred'
   and destination = :destination and `partition` in :partitions

-- name: keep_delivered
-- Copy delivered messages into the history, with or without their payload. An id that the database gave to a later
-- message after it lost commits is left alone. With :renumbers as in failure_keep.
insert into pillarbox_history (
       id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status, relay_id)
select case when :renumbers and id in (select h.id from pillarbox_history as h where h.id in :ids)
            then 4503599627370496 + /* random */ else id end,
       message_id, destination, `partition`, kind, type, topic, `key`, case :keep when 'full' then payload end, content_type,
       headers, source, subject, correlation_id, causation_id, event_time, created_at,
       nullif(available_at, 9223372036854775807), attempts, last_error, :now, 'delivered', :relay_id
  from pillarbox_outbox
 where id in :ids and (:unchecked or message_id in :message_ids)
   and destination = :destination and `partition` in :partitions

-- name: close_delivered
-- Delete delivered messages from the open table, after they were copied if they are kept.
delete from pillarbox_outbox
 where id in :ids and (:unchecked or message_id in :message_ids)
   and destination = :destination and `partition` in :partitions

-- name: read_message_ids
-- Return the message ids of rows that are still open in these lanes, to compare and for the journal, and their errors.
select id, message_id, last_error from pillarbox_outbox
 where id in :ids
   and destination = :destination and `partition` in :partitions

-- name: failure_keep
-- Copy an undelivered message into the history, always with its payload: it can be redriven. An id that history has
-- already, after a restore that took the counter back, is replaced by one above 2^52: no counter gets there, and a
-- redrive gives such a message a new id.
insert into pillarbox_history (
       id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status, relay_id,
       fingerprint)
select case when exists (select 1 from pillarbox_history as h where h.id = :id)
            then 4503599627370496 + /* random */ else id end,
       message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 9223372036854775807),
       :attempts, coalesce(:error, last_error), :now, :state, :relay_id, :fingerprint
  from pillarbox_outbox
 where id = :id
   and destination = :destination and `partition` in :partitions

-- name: failure_forward
-- Let a failed message go on to another destination. As a retry, because relays may have read past its id.
update pillarbox_outbox
   set destination = :forward_to, waits = 'retry', available_at = :now, due_at = :now, attempts = 0,
       last_error = coalesce(:error, last_error), status_at = :now
 where id = :id
   and destination = :destination and `partition` in :partitions

-- name: failure_close
-- Delete an undelivered message from the open table, after it was copied.
delete from pillarbox_outbox
 where id = :id
   and destination = :destination and `partition` in :partitions

-- name: claimed_messages
-- Read the claimed messages that are still open in these lanes, without payload and headers: a dead relay may have had
-- many.
select id, message_id, destination, `partition`, kind, type, topic, `key`, x'', content_type, null, source, subject,
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
