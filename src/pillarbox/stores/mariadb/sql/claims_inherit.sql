-- A claim of the new owner for what it inherits. A leftover under that number is from a take whose answer was lost.
insert into pillarbox_claim (relay_id, number, message_ids, strikes, claimed_at)
values (%(relay_id)s, %(number)s, %(message_ids)s, %(strikes)s, %(now)s)
    on duplicate key update message_ids = values(message_ids), strikes = values(strikes), claimed_at = values(claimed_at)
