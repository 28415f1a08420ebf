-- The claims of relays whose lanes are being taken, in one order for everybody. $1 relays
select relay_id, number, strikes, message_ids from pillarbox_claim
 where relay_id = any($1::uuid[])
 order by relay_id, number
   for update
