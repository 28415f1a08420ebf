-- Waiting messages wait until a time a person chose, and their keys with them.
update pillarbox_outbox set waits = 'retry', available_at = :until, status_at = :now
 where id in (select value from json_each(:ids))
