-- The journal of messages that are about to be purged.
delete j from pillarbox_journal as j
  join pillarbox_history as h on h.message_id = j.message_id and h.destination = j.destination
 where h.id in %(ids)s
