-- Claims with nothing left in them.
delete from pillarbox_claim
 where relay_id = %(relay_id)s and number in %(numbers)s
