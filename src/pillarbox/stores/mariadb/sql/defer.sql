-- Waiting messages wait until a time a person chose, and their keys with them.
update pillarbox_outbox set waits = 'retry', available_at = %(until)s, status_at = %(now)s
 where id in %(ids)s
