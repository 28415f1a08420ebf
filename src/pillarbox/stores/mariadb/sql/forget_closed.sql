-- What was reopened, or outlived its retention, is closed history no longer.
delete from pillarbox_history where id in %(ids)s
