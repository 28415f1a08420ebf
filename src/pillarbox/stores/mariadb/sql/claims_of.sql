-- The claims of some relays, in one order for everybody who changes them.
select relay_id, number, message_ids, strikes from pillarbox_claim
 where relay_id in %(relay_ids)s
 order by relay_id, number
   for update
