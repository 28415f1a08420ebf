-- How many messages are in relays' hands, found through the claims; the last column says in which index they are.
-- $1 limit, $2 now or null
select destination, topic, 'sending', not is_timed or available_at <= coalesce($2::timestamptz, statement_timestamp()),
       count(*), min(case when is_timed then available_at else created_at end),
       count(*) >= $1, case when is_timed then 'timed' when waits is null then 'fresh' end
  from (select destination, topic, waits, available_at, created_at, coalesce(waits in ('deferred', 'retry'), false) as is_timed
          from pillarbox_outbox
         where id = any(array(select unnest(message_ids) from pillarbox_claim limit $1)) and waits is distinct from 'held') m
 group by 1, 2, 4, 8
