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
