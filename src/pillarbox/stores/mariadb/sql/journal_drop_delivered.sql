-- Where nothing is kept of a delivered message, no purge would ever find its journal: it goes with the message.
delete j from pillarbox_journal as j
  join pillarbox_outbox as o on o.message_id = j.message_id and o.destination = j.destination
 where o.id in %(ids)s and o.destination = %(destination)s and o.`partition` in %(partitions)s
