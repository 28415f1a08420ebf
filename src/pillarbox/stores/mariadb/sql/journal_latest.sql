-- The latest lines of the journal, oldest of them first.
select message_id, destination, action, at, `by`, attempt, error, detail
  from (select * from pillarbox_journal order by id desc limit %(limit)s) as latest
 order by id
