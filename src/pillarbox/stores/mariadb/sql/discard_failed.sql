-- Failed messages that a person gave up.
update pillarbox_history set status = 'discarded', last_error = %(reason)s, status_at = %(now)s
 where id in %(ids)s and status = 'failed'
