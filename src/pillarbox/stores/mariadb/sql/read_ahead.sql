-- The ids of the first fresh messages of one lane, from its start. The index alone tells.
select %(partition)s as lane, group_concat(id order by id) as ids
  from (select id from pillarbox_outbox
         where waits is null and destination = %(destination)s and `partition` = %(partition)s and available_at is null
         order by id
         limit %(limit)s) as first
