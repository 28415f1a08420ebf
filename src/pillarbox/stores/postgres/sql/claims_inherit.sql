-- One claim of the new owner for what it inherits; after a lost answer, the one that the first try made. $1 relay, $2 number, $3 ids, $4 strikes, $5 now or null
insert into pillarbox_claim (relay_id, number, message_ids, strikes, claimed_at)
values ($1, $2, $3, $4, coalesce($5::timestamptz, statement_timestamp()))
    on conflict (relay_id, number) do update
   set message_ids = pillarbox_claim.message_ids || excluded.message_ids,
       strikes = greatest(pillarbox_claim.strikes, excluded.strikes)
