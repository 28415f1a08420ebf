-- Failed messages that a person gave up.
update pillarbox_history set status = 'discarded', last_error = :reason, status_at = :now
 where id in (select value from json_each(:ids)) and status = 'failed'
