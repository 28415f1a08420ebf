-- An undelivered message waits. Repeating it changes nothing while the time it set has not come.
update pillarbox_outbox
   set waits = %(waits)s, attempts = %(attempts)s, last_error = coalesce(%(error)s, last_error), status_at = %(now)s,
       available_at = coalesce(%(now)s + %(delay)s, 9223372036854775807)
 where id = %(id)s
   and destination = %(destination)s and `partition` in %(partitions)s
   and not (waits <=> %(waits)s and attempts = %(attempts)s and last_error <=> coalesce(%(error)s, last_error)
            and available_at > %(now)s)
