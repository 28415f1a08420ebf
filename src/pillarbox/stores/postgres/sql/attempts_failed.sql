-- How many attempts failed lately, looking at no more than the last so many lines. $1 since when, $2 limit
select destination, count(*)
  from (select destination, action, at from pillarbox_journal order by id desc limit $2) latest
 where action = 'attempt_failed' and at >= $1
 group by destination
