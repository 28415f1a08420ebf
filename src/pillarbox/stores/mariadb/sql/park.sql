-- Fresh and deferred messages that were met behind an earlier one of their key wait for it, for no time in particular.
update pillarbox_outbox
   set waits = 'parked', available_at = 9223372036854775807, status_at = %(now)s
 where id in %(ids)s and (waits is null or waits = 'deferred')
   and destination = %(destination)s and `partition` in %(partitions)s
