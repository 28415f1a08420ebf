-- Messages that consumers could not handle, longest failed first.
select convert(consumer using utf8mb4), convert(source using utf8mb4), convert(message_id using utf8mb4),
        attempts, last_error, status_at, coalesce(message, '')
  from pillarbox_inbox
 where status = 'failed' and (%(consumer)s is null or consumer = %(consumer)s)
   and (%(all_ids)s or message_id in %(message_ids)s)
   and (%(error)s is null or instr(lower(coalesce(last_error, '')), %(error)s) > 0)
 order by status_at, consumer, source, message_id
 limit %(limit)s
