-- The destinations that have open messages.
select distinct destination from pillarbox_outbox where waits is null
union select distinct destination from pillarbox_outbox where waits = 'deferred'
union select distinct destination from pillarbox_outbox where waits = 'retry'
union select distinct destination from pillarbox_outbox where waits = 'parked'
union select distinct destination from pillarbox_outbox where waits = 'held'
