-- Held messages go again.
update pillarbox_outbox
   set waits = 'retry', available_at = %(now)s, attempts = 0, status_at = %(now)s, destination = coalesce(%(to)s, destination)
 where id in %(ids)s and waits = 'held'
