-- A claim of the new owner for what it inherits. A leftover under that number is from a take whose answer was lost.
insert into pillarbox_claim (relay_id, number, message_ids, strikes, claimed_at)
values (:relay_id, :number, :message_ids, :strikes, :now)
    on conflict (relay_id, number) do update
   set message_ids = excluded.message_ids, strikes = excluded.strikes, claimed_at = excluded.claimed_at
