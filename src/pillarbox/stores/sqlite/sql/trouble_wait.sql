-- An undelivered message waits. Repeating it changes nothing while the time it set has not come.
update pillarbox_outbox
   set waits = :waits, attempts = :attempts, last_error = coalesce(:error, last_error), status_at = :now,
       available_at = coalesce(:now + :delay, 9223372036854775807)
 where id = :id
   and destination = :destination and partition in (select value from json_each(:partitions))
   and not (waits is :waits and attempts = :attempts and last_error is coalesce(:error, last_error)
            and available_at > :now)
