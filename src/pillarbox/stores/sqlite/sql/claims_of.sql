-- The claims of some relays.
select relay_id, number, message_ids, strikes from pillarbox_claim
 where relay_id in (select value from json_each(:relay_ids))
 order by relay_id, number
