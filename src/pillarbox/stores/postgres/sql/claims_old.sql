-- Batches that have been in a relay's hands for long, oldest first. $1 before when, $2 limit
select relay_id, claimed_at, message_ids, strikes
  from pillarbox_claim
 where claimed_at <= $1 and message_ids <> '{}'
 order by claimed_at
 limit $2
