-- One failed message of an inbox is closed as done, without being handled.
update pillarbox_inbox set status = 'done', last_error = :reason, message = null, status_at = :now
 where consumer = :consumer and source = :source and message_id = :message_id and status = 'failed'
