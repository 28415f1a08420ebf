-- Batches that have been in a relay's hands for long, oldest first.
select relay_id, claimed_at, message_ids, strikes
  from pillarbox_claim
 where claimed_at <= :now - :older_than and message_ids <> '[]'
 order by claimed_at
 limit :limit
