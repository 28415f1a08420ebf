-- Delivered messages are open no longer.
delete from pillarbox_outbox
 where id in %(ids)s
   and destination = %(destination)s and `partition` in %(partitions)s
