-- Removes claims of relays that are gone when nothing in them is open: no takeover needs those.
delete from pillarbox_claim c
 where not exists (select from pillarbox_relay r where r.relay_id = c.relay_id)
   and not exists (select from pillarbox_outbox o where o.id = any(c.message_ids))
