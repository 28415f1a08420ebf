-- Records a batch as in a relay's hands. The number makes repeating it harmless.
insert into pillarbox_claim (relay_id, number, message_ids, strikes, claimed_at)
values (%(relay_id)s, %(number)s, %(message_ids)s, %(strikes)s, %(now)s)
    on duplicate key update strikes = pillarbox_claim.strikes
