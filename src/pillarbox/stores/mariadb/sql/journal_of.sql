-- The latest lines about one message, oldest of them first.
select message_id, destination, action, at, `by`, attempt, error, detail
  from (select * from pillarbox_journal where message_id = %(message_id)s order by id desc limit %(limit)s) as latest
 order by id
