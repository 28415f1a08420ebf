-- Held messages go again.
update pillarbox_outbox
   set waits = 'retry', available_at = :now, attempts = 0, status_at = :now, destination = coalesce(:to, destination)
 where id in (select value from json_each(:ids)) and waits = 'held'
