-- name: claims_queue
-- Lets one takeover at a time recover what these relays have claimed: a row of slots is locked for each last digit of their
-- ids, in order, because not every server has locks that are no rows. $1 relays, in order, $2 destination, which is not asked
select slot
  from pillarbox_slot
 where slot in (select ascii(right(r.id::text, 1)) from unnest($1::uuid[]) as r (id)) and $2::text is not null
 order by slot
   for update
