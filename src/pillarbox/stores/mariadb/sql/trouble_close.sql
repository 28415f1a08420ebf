-- A message that ended undelivered is open no longer.
delete from pillarbox_outbox
 where id = %(id)s
   and destination = %(destination)s and `partition` in %(partitions)s
