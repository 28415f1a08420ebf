-- What was put into the history is open no longer.
delete from pillarbox_outbox where id in %(ids)s
