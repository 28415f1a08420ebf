-- A relay that goes has nothing in its hands.
delete from pillarbox_claim where relay_id = %(relay_id)s
