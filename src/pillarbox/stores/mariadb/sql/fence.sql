-- Who owns the lanes of a destination, under which epoch: what a fence is compared with. Stays true until the commit.
select `partition`, relay_id, epoch from pillarbox_lane
 where destination = %(destination)s and `partition` in %(partitions)s
 order by `partition`
  lock in share mode
