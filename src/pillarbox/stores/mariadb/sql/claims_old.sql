-- Batches that have been in a relay's hands for long, oldest first.
select relay_id, claimed_at, message_ids, strikes
  from pillarbox_claim
 where claimed_at <= %(now)s - %(older_than)s and json_length(message_ids) > 0
 order by claimed_at
 limit %(limit)s
