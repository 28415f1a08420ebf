-- name: total_size
-- The size of all payloads of messages: below the limit it is all that needs to be known of them.
select coalesce(sum(length(payload)), 0) from pillarbox_outbox where id in :ids

-- name: sizes
-- The payload sizes of messages, to choose how many to fetch.
select id, length(payload) from pillarbox_outbox where id in :ids

-- name: read
-- Read the messages that were chosen by id, in id order.
select id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at
  from pillarbox_outbox
 where id in :ids
 order by id
