-- name: journal
-- The latest lines of the journal, oldest of them first; of one message or of all. $1 message or null, $2 limit
select message_id, destination, action, at, by, attempt, error, detail
  from (select * from pillarbox_journal
         where $1::uuid is null or message_id = $1::uuid
         order by id desc
         limit $2) latest
 order by id

-- name: journal_store
-- Record an operation on the store as a whole. $1 action, $2 by, $3 detail, $4 now or null
insert into pillarbox_journal (destination, action, at, by, detail)
values ('*', $1, coalesce($4::timestamptz, statement_timestamp()), $2, $3)

-- name: first_tries
-- Seconds since the first try of each message that spent no attempt, after it was last sent again by a person.
-- $1 destination, $2 message ids, $3 now or null
select j.message_id, extract(epoch from coalesce($3::timestamptz, statement_timestamp()) - min(j.at))::float8
  from pillarbox_journal j
  join (select message_id, max(case when action in ('redriven', 'replayed') then id else 0 end) as id
          from pillarbox_journal
         where message_id = any($2::uuid[]) and destination = $1
         group by message_id) again on again.message_id = j.message_id
 where j.message_id = any($2::uuid[]) and j.destination = $1 and j.action = 'tried' and j.id > again.id and isfinite(j.at)
 group by j.message_id
