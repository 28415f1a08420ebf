-- Starts a destination again.
delete from pillarbox_destination where destination = %(destination)s
