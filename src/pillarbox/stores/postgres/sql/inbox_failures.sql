-- Messages that consumers could not handle. $1 consumer or null, $2 message ids or null, $3 part of the error or null, $4 limit
select consumer, source, message_id, attempts, last_error, status_at, coalesce(message, '')
  from pillarbox_inbox
 where status = 'failed' and ($1::text is null or consumer = $1) and ($2::text[] is null or message_id = any($2))
       and ($3::text is null or position(lower($3) in lower(coalesce(last_error, ''))) > 0)
 order by status, status_at
 limit $4
