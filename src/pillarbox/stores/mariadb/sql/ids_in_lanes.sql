-- Those of the ids that are open in these lanes.
select id from pillarbox_outbox
 where id in %(ids)s
   and destination = %(destination)s and `partition` in %(partitions)s
