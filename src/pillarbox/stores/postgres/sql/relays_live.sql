-- Which of these relays are alive. Asked under the lanes' locks with a snapshot of its own, so that a relay which took a
-- lane a moment ago is seen. $1 relays, $2 lease, $3 now or null
select relay_id from pillarbox_relay
 where relay_id = any($1::uuid[])
   and expires_at > coalesce($3::timestamptz, statement_timestamp())
   and expires_at <= coalesce($3::timestamptz, statement_timestamp()) + $2::interval
