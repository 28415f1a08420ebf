-- One failed message of an inbox is closed as done, without being handled.
update pillarbox_inbox set status = 'done', last_error = %(reason)s, message = null, status_at = %(now)s
 where consumer = %(consumer)s and source = %(source)s and message_id = %(message_id)s and status = 'failed'
