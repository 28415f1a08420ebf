-- name: redrive_inbox
-- Put one failed inbox message back to started: the consumer looks for those with a stored message.
update pillarbox_inbox set status = 'started', attempts = 0, status_at = :now
 where consumer = :consumer and source = :source and message_id = :message_id and status = 'failed'

-- name: discard_inbox
-- Close one failed inbox message as done, without handling it.
update pillarbox_inbox set status = 'done', message = null, status_at = :now
 where consumer = :consumer and source = :source and message_id = :message_id and status = 'failed'
