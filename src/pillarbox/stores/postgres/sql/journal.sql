-- The latest lines of the journal, oldest of them first; of one message or of all. $1 message or null, $2 limit
select message_id, destination, action, at, by, attempt, error, detail
  from (select * from pillarbox_journal
         where $1::uuid is null or message_id = $1::uuid
         order by id desc
         limit $2) latest
 order by id
