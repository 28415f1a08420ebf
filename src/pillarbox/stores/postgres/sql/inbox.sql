-- name: inbox_failures
-- Messages that consumers could not handle. $1 consumer or null, $2 message ids or null, $3 part of the error or null, $4 limit
select consumer, source, message_id, attempts, last_error, status_at, coalesce(message, '')
  from pillarbox_inbox
 where status = 'failed' and ($1::text is null or consumer = $1) and ($2::text[] is null or message_id = any($2))
       and ($3::text is null or position(lower($3) in lower(coalesce(last_error, ''))) > 0)
 order by status, status_at
 limit $4

-- name: redrive_inbox
-- Has failed messages of an inbox handled again: the consumer finds them.
-- $1 consumer or null, $2 message ids or null, $3 part of the error or null, $4 limit, $5 by, $6 now or null, $7 reason or null
with clock as materialized (
    select coalesce($6::timestamptz, statement_timestamp()) as now
), picked as materialized (
    select consumer, source, message_id from pillarbox_inbox
     where status = 'failed' and message is not null and ($1::text is null or consumer = $1) and ($2::text[] is null or message_id = any($2))
       and ($3::text is null or position(lower($3) in lower(coalesce(last_error, ''))) > 0)
     order by status, status_at
     limit $4
       for update skip locked
), changed as (
    update pillarbox_inbox i set status = 'started', attempts = 0, status_at = now
      from picked p, clock
     where i.consumer = p.consumer and i.source = p.source and i.message_id = p.message_id
    returning i.consumer, i.source, i.message_id
), told as (
    insert into pillarbox_journal (destination, action, at, by, reason, detail)
    select 'inbox:' || consumer, 'redriven', now, $5, $7::text, source || ' ' || message_id
      from changed, clock
)
select count(*) from changed

-- name: discard_inbox
-- Closes failed messages of an inbox as done, without handling them.
-- $1 consumer or null, $2 message ids or null, $3 part of the error or null, $4 limit, $5 by, $6 now or null, $7 reason
with clock as materialized (
    select coalesce($6::timestamptz, statement_timestamp()) as now
), picked as materialized (
    select consumer, source, message_id from pillarbox_inbox
     where status = 'failed' and ($1::text is null or consumer = $1) and ($2::text[] is null or message_id = any($2))
       and ($3::text is null or position(lower($3) in lower(coalesce(last_error, ''))) > 0)
     order by status, status_at
     limit $4
       for update skip locked
), changed as (
    update pillarbox_inbox i set status = 'done', message = null, status_at = now
      from picked p, clock
     where i.consumer = p.consumer and i.source = p.source and i.message_id = p.message_id
    returning i.consumer, i.source, i.message_id
), told as (
    insert into pillarbox_journal (destination, action, at, by, reason, detail)
    select 'inbox:' || consumer, 'discarded', now, $5, $7, source || ' ' || message_id
      from changed, clock
)
select count(*) from changed

-- name: inbox_counts
-- Failed messages by consumer, among the longest failed. $1 limit
select consumer, count(*), min(status_at)
  from (select consumer, status_at from pillarbox_inbox where status = 'failed' order by status, status_at limit $1) f
 group by consumer
 order by consumer

-- name: purge_inbox
-- Deletes records of one status that are outside the window. $1 how old, $2 limit, $3 now or null, $4 status,
-- $5 whether with content, or null
with picked as materialized (
    select consumer, source, message_id from pillarbox_inbox
     where status = $4 and ($5::boolean is null or (message is not null) = $5) and status_at <= coalesce($3::timestamptz, statement_timestamp()) - $1::interval
     order by status, status_at
     limit $2
       for update skip locked
), gone as (
    delete from pillarbox_inbox i using picked p
     where i.consumer = p.consumer and i.source = p.source and i.message_id = p.message_id
    returning 1
)
select count(*) from gone

-- name: inbox_records
-- What inboxes know of some messages: under each consumer and source, for the primary key begins with them.
-- $1 message ids, $2 how many consumers and sources
with recursive place (consumer, source, number) as (
    (select consumer, source, 1 from pillarbox_inbox order by consumer, source limit 1)
    union all
    select next.consumer, next.source, p.number + 1
      from place p
     cross join lateral (
            select i.consumer, i.source from pillarbox_inbox i
             where (i.consumer, i.source) > (p.consumer, p.source)
             order by i.consumer, i.source
             limit 1
           ) next
     where p.number < $2
)
select i.consumer, i.source, i.message_id, i.status, i.status_at, i.attempts, i.last_error, i.duplicates
  from place p
  join pillarbox_inbox i on i.consumer = p.consumer and i.source = p.source and i.message_id = any($1::text[])
 order by i.consumer, i.source, i.message_id
