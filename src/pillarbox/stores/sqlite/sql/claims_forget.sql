-- Claims of relays that are gone when nothing in them is open: no takeover needs those.
delete from pillarbox_claim
 where not exists (select 1 from pillarbox_relay as r where r.relay_id = pillarbox_claim.relay_id)
   and not exists (
        select 1 from json_each(pillarbox_claim.message_ids) as claimed
         cross join pillarbox_outbox as o on o.id = claimed.value)
