-- name: find_waiting
-- Pending messages that wait for their time or behind another: never fresh, so through the index of those that wait, not looking at
-- more than so many. $1 limit, $2 now or null, $3 reasons to wait, $4 destination or null
select id, message_id, destination, partition, kind, type, topic, key,
       /* payload */ payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity') as available_at, waits, attempts, last_error, status_at, 'pending'
  from pillarbox_outbox
 where id = any(array(
        select w.id from unnest($3::text[]) as reason (waits)
         cross join lateral (
                select o.id from pillarbox_outbox o
                 where o.waits = reason.waits and o.waits is not null and ($4::text is null or o.destination = $4)
                 order by o.destination, o.waits, coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at)
                 limit 100000
               ) w))
   and id not in (select m.id from pillarbox_claim c join pillarbox_relay r on r.relay_id = c.relay_id, unnest(c.message_ids) as m (id)
                   where m.id is not null and r.expires_at > coalesce($2::timestamptz, transaction_timestamp())) /* where */
 order by id
 limit $1

-- name: count_phases
-- How many messages of each destination are later, retried, parked or held, each by its index up to the limit. $1 limit, $2 now or
-- null
with recursive place (destination) as (
    select min(destination) from pillarbox_outbox where waits is not null
    union all
    select (select min(o.destination) from pillarbox_outbox o where o.waits is not null and o.destination > p.destination)
      from place p where p.destination is not null
)
select p.destination, 'later', counted.count
  from place p
 cross join lateral (
        select count(*) from (
            select from (values ('deferred'), ('retry')) side (waits)
             cross join lateral (
                    select from pillarbox_outbox o
                     where o.destination = p.destination and o.waits = side.waits and o.waits is not null
                       and coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at) > coalesce($2::timestamptz, statement_timestamp())
                     order by o.destination, o.waits, coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at)
                     limit $1) w
             limit $1) o
       ) counted
 where p.destination is not null
union all
select p.destination, reason.waits, counted.count
  from place p
 cross join (values ('retry'), ('parked'), ('held')) reason (waits)
 cross join lateral (
        select count(*) from (
            select from pillarbox_outbox o
             where o.destination = p.destination and o.waits = reason.waits and o.waits is not null
             order by o.destination, o.waits, coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at)
             limit $1) o
       ) counted
 where p.destination is not null

-- name: lane_backlogs
-- How much is due in each lane of a destination, by the indexes that relays read, and since when. $1 destination, $2 limit, $3 now or null
select lane, fresh.count + blocked.count + timed.count, greatest(fresh.count, blocked.looked, timed.count) >= $2,
       least(first.created_at, blocked.since, timed.since)
  from generate_series(0, 63) lane
 cross join lateral (
        select count(*) from (
            select from pillarbox_outbox o
             where o.destination = $1 and (o.partition::bigint << 57) + o.id > lane::bigint << 57
               and (o.partition::bigint << 57) + o.id <= (lane::bigint << 57) + 144115188075855871 and o.waits is null
             order by o.destination, (o.partition::bigint << 57) + o.id
             limit $2) o
       ) fresh
  left join lateral (
        select o.created_at from pillarbox_outbox o
         where o.destination = $1 and (o.partition::bigint << 57) + o.id > lane::bigint << 57
           and (o.partition::bigint << 57) + o.id <= (lane::bigint << 57) + 144115188075855871 and o.waits is null
         order by o.destination, (o.partition::bigint << 57) + o.id
         limit 1
       ) first on true
 cross join lateral (
        select count(*) filter (where b.is_due) as count, count(*) as looked, min(b.since) filter (where b.is_due) as since
          from (select coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at) as since,
                       o.waits <> 'held' and coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at)
                                             <= coalesce($3::timestamptz, statement_timestamp()) as is_due
                  from pillarbox_outbox o
                 where o.destination = $1 and o.partition = lane and o.waits in ('retry', 'parked', 'held')
                 order by o.destination, o.partition, o.key, o.id + 0
                 limit $2) b
       ) blocked
 cross join lateral (
        select count(*), min(t.since) as since
          from (select coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at) as since from pillarbox_outbox o
                 where o.destination = $1 and o.partition = lane and o.waits in ('deferred', 'retry') and o.waits = 'deferred'
                   and o.available_at <= coalesce($3::timestamptz, statement_timestamp())
                 order by o.destination, o.partition, o.available_at, o.id
                 limit $2) t
       ) timed
 where fresh.count + blocked.count + timed.count > 0
 order by lane

-- name: inbox_activity
-- The consumers that have records, and what each handled of late: of the latest records alone. $1 limit, $2 since when, $3 how many consumers
with recursive reader (consumer, number) as (
    (select consumer, 1 from pillarbox_inbox order by consumer limit 1)
    union all
    select next.consumer, r.number + 1
      from reader r
     cross join lateral (
            select i.consumer from pillarbox_inbox i where i.consumer > r.consumer order by i.consumer limit 1
           ) next
     where r.number < $3
), looked as materialized (
    select consumer, duplicates, status_at from pillarbox_inbox
     where status = 'done' and status_at >= $2
     order by status desc, status_at desc
     limit $1
)
select r.consumer, count(l.consumer), coalesce(sum(l.duplicates), 0)::bigint, max(l.status_at),
       (select count(*) from looked), (select min(status_at) from looked)
  from reader r
  left join looked l on l.consumer = r.consumer
 group by r.consumer
 order by r.consumer

-- name: facts
-- The version of the tables and of the server, the oldest open transaction, and whether some sessions cannot be seen.
select (select max(version) from pillarbox_schema), current_setting('server_version'),
       max(clock_timestamp() - xact_start) filter (where pid <> pg_backend_pid()),
       coalesce(bool_or(query = '<insufficient privilege>'), false)
  from pg_stat_activity
 where datname = current_database()

-- name: failed_keys
-- The keys of the latest failed messages of a group. $1 destination, $2 limit
select distinct key from (
    select key from pillarbox_history
     where status = 'failed' and destination = $1 /* where */
     order by status_at desc
     limit $2) as latest
 where key is not null

-- name: held_keys
-- The keys of the latest held messages of a group. $1 destination, $2 limit
select distinct key from (
    select key from pillarbox_outbox
     where waits = 'held' and destination = $1 /* where */
     order by status_at desc
     limit $2) as latest
 where key is not null

-- name: last_errors
-- The last errors of open messages. $1 ids
select id, last_error from pillarbox_outbox where id = any($1::bigint[]) and last_error is not null

-- name: key_ids
-- The first open messages of a key: blocked ones by their index, fresh ones among the first of the lane. $1 destination, $2 partition,
-- $3 key, $4 after which id, $5 limit, $6 how many fresh ones are looked at
select id from (
    (select o.id from pillarbox_outbox o
      where o.destination = $1 and o.partition = $2 and o.key = $3 and o.waits in ('retry', 'parked', 'held') and o.id + 0 > $4
      order by o.destination, o.partition, o.key, o.id + 0
      limit $5)
    union all
    (select f.id
       from (select o.id, o.key from pillarbox_outbox o
              where o.destination = $1 and (o.partition::bigint << 57) + o.id > ($2::bigint << 57) + $4
                and (o.partition::bigint << 57) + o.id <= ($2::bigint << 57) + 144115188075855871 and o.waits is null
              order by o.destination, (o.partition::bigint << 57) + o.id
              limit $6) f
      where f.key = $3
      limit $5)
    union all
    select d.id
      from (select o.id, o.key from pillarbox_outbox o
             where o.destination = $1 and o.partition = $2 and o.waits in ('deferred', 'retry')
             order by o.destination, o.partition, o.available_at, o.id
             limit $6) d
     where d.key = $3 and d.id > $4
) open
 group by id
 order by id
 limit $5
