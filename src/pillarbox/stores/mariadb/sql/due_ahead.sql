-- The ids of the messages of one lane that have been due longest, for one reason to wait. The index alone tells.
select id, available_at from (
    select id, available_at from pillarbox_outbox
     where waits = %(waits)s and destination = %(destination)s and `partition` = %(partition)s and available_at <= %(now)s
       and id not in %(skip)s
     order by available_at, id
     limit %(limit)s) as due
