-- One failed message of an inbox is handled again: the consumer finds it.
update pillarbox_inbox set status = 'started', attempts = 0, status_at = %(now)s
 where consumer = %(consumer)s and source = %(source)s and message_id = %(message_id)s and status = 'failed'
