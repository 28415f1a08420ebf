-- name: journal
-- The latest lines of the journal that meet the conditions, oldest of them first; of one message or of all.
-- $1 message or null, $2 limit, $3 destination or null, $4 by or null, $5 actions or null, $6 before which id, or null,
-- $7 after which id, or null
select message_id, destination, action, at, by, attempt, error, detail, id, reason, selection
  from (select * from pillarbox_journal
         where ($1::uuid is null or message_id = $1::uuid) and ($3::text is null or destination = $3)
           and ($4::text is null or by = $4) and ($5::text[] is null or action = any($5))
           and ($6::bigint is null or id < $6) and ($7::bigint is null or id > $7)
         order by id desc
         limit $2) latest
 order by id

-- name: journal_general
-- The same of lines that belong to no message, by an index of theirs. $1 limit, $2 to $5 as $3 to $6 there
select message_id, destination, action, at, by, attempt, error, detail, id, reason, selection
  from (select * from pillarbox_journal
         where message_id is null and ($2::text is null or destination = $2)
           and ($3::text is null or by = $3) and ($4::text[] is null or action = any($4)) and ($5::bigint is null or id < $5)
         order by id desc
         limit $1) latest
 order by id

-- name: journal_end
-- The last line that is not looked at any more. $1 before which id, or null, $2 how many are looked at
select id from pillarbox_journal where $1::bigint is null or id < $1 order by id desc limit 1 offset $2

-- name: journal_store
-- Record an operation or a change that belongs to no message. $1 action, $2 by, $3 detail, $4 now or null,
-- $5 destination, $6 reason, $7 selection
insert into pillarbox_journal (destination, action, at, by, detail, reason, selection)
values ($5, $1, coalesce($4::timestamptz, statement_timestamp()), $2, $3, $6, $7)

-- name: tries
-- The failed tries of each message since it was last sent again by a person: how many are sure to be tries, how many
-- ends spent nothing, when the first was, when the first that spent no attempt was, and the time.
-- $1 message ids, $2 destination or null, $3 now or null
select j.message_id, j.destination,
       count(*) filter (where j.action in ('attempt_failed', 'tried') or j.attempt > 0),
       count(*) filter (where j.action in ('failed', 'held') and coalesce(j.attempt, 0) <= 0),
       min(j.at) filter (where isfinite(j.at)), min(j.at) filter (where isfinite(j.at) and j.action = 'tried'),
       coalesce($3::timestamptz, statement_timestamp())
  from pillarbox_journal j
  join (select message_id, destination, max(case when action in ('redriven', 'replayed') then id else 0 end) as id
          from pillarbox_journal
         where message_id = any($1::uuid[]) and ($2::text is null or destination = $2)
         group by message_id, destination) again on again.message_id = j.message_id and again.destination = j.destination
 where j.message_id = any($1::uuid[]) and j.action in ('attempt_failed', 'tried', 'failed', 'held') and j.id > again.id
 group by j.message_id, j.destination
