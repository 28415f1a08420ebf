-- How many attempts failed lately, looking at no more than the last so many lines.
select destination, count(*)
  from (select destination, action, at from pillarbox_journal order by id desc limit %(limit)s) as latest
 where action = 'attempt_failed' and at >= %(now)s - %(window)s
 group by destination
