-- Removes relays that expired at least so long ago. $1 relays or null for all, $2 how long ago, $3 lease or null, $4 now or null
delete from pillarbox_relay
 where ($1::uuid[] is null or relay_id = any($1::uuid[]))
   and (expires_at <= coalesce($4::timestamptz, statement_timestamp()) - $2::interval
        or expires_at > coalesce($4::timestamptz, statement_timestamp()) + $3::interval)
