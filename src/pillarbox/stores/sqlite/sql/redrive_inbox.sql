-- One failed message of an inbox is handled again: the consumer finds it.
update pillarbox_inbox set status = 'started', attempts = 0, status_at = :now
 where consumer = :consumer and source = :source and message_id = :message_id and status = 'failed'
