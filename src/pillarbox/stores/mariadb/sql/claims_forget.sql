-- Claims of relays that are gone when nothing in them is open: no takeover needs those.
delete c from pillarbox_claim as c
  left join pillarbox_relay as r on r.relay_id = c.relay_id
  left join (select distinct held.relay_id, held.number
               from pillarbox_claim as held
              cross join json_table(held.message_ids, '$[*]' columns (id bigint path '$')) as claimed
               join pillarbox_outbox as o on o.id = claimed.id) as open
    on open.relay_id = c.relay_id and open.number = c.number
 where r.relay_id is null and open.number is null
