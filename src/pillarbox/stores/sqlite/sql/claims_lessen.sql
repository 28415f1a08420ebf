-- Some messages left a claim.
update pillarbox_claim set message_ids = :message_ids
 where relay_id = :relay_id and number in (select value from json_each(:numbers))
