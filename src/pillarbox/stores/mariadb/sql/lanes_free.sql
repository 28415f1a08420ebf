-- Those of the lanes that nobody alive owns, or that are the relay's own, locked. What another relay is taking or
-- writing in is passed over.
select l.`partition`, l.relay_id
  from pillarbox_lane as l
 where l.destination = %(destination)s and l.`partition` in %(partitions)s
   and (l.relay_id is null or l.relay_id = %(relay_id)s
        or not exists (
            select 1 from pillarbox_relay as r
             where r.relay_id = l.relay_id and r.expires_at > %(now)s and r.expires_at <= %(now)s + %(lease)s))
 order by l.`partition`
   for update skip locked
