-- Messages that consumers could not handle, longest failed first.
select consumer, source, message_id, attempts, last_error, status_at, coalesce(message, x'')
  from pillarbox_inbox
 where status = 'failed' and (:consumer is null or consumer = :consumer) and (:all_ids or message_id in (select value from json_each(:message_ids)))
   and (:error is null or instr(casefolded(coalesce(last_error, '')), :error) > 0)
 order by status_at, consumer, source, message_id
 limit :limit
