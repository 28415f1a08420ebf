-- How many open messages match, by the state people see. $1 states
select count(*) from (
    select case when waits = 'held' then 'failed'
                when id in (select unnest(message_ids) from pillarbox_claim) then 'sending'
                else 'pending' end as state
      from pillarbox_outbox where true /* where */
) m where state = any($1::text[])
