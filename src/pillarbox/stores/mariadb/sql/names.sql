-- The message ids of those that are open in these lanes.
select id, message_id from pillarbox_outbox
 where id in %(ids)s
   and destination = %(destination)s and `partition` in %(partitions)s
