-- Some messages left a claim.
update pillarbox_claim set message_ids = %(message_ids)s
 where relay_id = %(relay_id)s and number in %(numbers)s
