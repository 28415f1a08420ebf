-- name: find_waiting
-- Pending messages that wait for their time or behind another: never fresh, so through the index of those that wait, not looking at
-- more than so many.
select id, message_id, destination, `partition`, kind, type, topic, `key`,
       case when :payloads then payload when payload is not null then x'' end, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at, 'pending'
  from pillarbox_outbox
 where id in (select id from (
           select id from pillarbox_outbox
            where waits in :waiting and (:of is null or destination = :of)
            limit 100000) as looked)
   and (:parked or waits <> 'parked')
   and id not in (select claimed.id from pillarbox_claim as c join pillarbox_relay as r on r.relay_id = c.relay_id
                   cross join json_table(c.message_ids, '$[*]' columns (id bigint path '$')) as claimed
                   where claimed.id is not null and r.expires_at > :now) /* where */
 order by id
 limit :limit

-- name: count_later
-- How many messages of a destination are not due yet, up to the limit.
select count(*) from (
    select 1 from pillarbox_outbox
     where destination = :destination and waits in ('deferred', 'retry')
       and coalesce(due_at, case waits when 'deferred' then available_at end, created_at) > :now
     limit :limit) as looked

-- name: count_reason
-- How many messages of a destination wait for one reason, up to the limit.
select count(*) from (
    select 1 from pillarbox_outbox
     where destination = :destination and waits = :waits
     limit :limit) as looked

-- name: lane_backlog
-- How much is due in a lane of a destination, by the indexes that relays read, and since when.
select :partition as number,
       (select count(*) from (select 1 from pillarbox_outbox
                               where destination = :destination and `partition` = :partition and waits is null
                               limit :limit) as looked) as fresh,
       (select count(*) from (select 1 from pillarbox_outbox
                               where destination = :destination and `partition` = :partition and waits in ('retry', 'parked')
                                 and coalesce(due_at, case waits when 'deferred' then available_at end, created_at) <= :now
                               limit :limit) as looked) as blocked,
       (select count(*) from (select 1 from pillarbox_outbox
                               where destination = :destination and `partition` = :partition and waits in ('deferred', 'retry')
                                 and waits = 'deferred' and available_at <= :now
                               limit :limit) as looked) as timed,
       (select created_at from pillarbox_outbox
         where destination = :destination and `partition` = :partition and waits is null
         order by id
         limit 1) as first_at,
       (select min(since) from (select coalesce(due_at, case waits when 'deferred' then available_at end, created_at) as since from pillarbox_outbox
                                 where destination = :destination and `partition` = :partition and waits in ('retry', 'parked')
                                   and coalesce(due_at, case waits when 'deferred' then available_at end, created_at) <= :now
                                 limit :limit) as looked) as blocked_at,
       (select min(since) from (select coalesce(due_at, case waits when 'deferred' then available_at end, created_at) as since from pillarbox_outbox
                                 where destination = :destination and `partition` = :partition and waits in ('deferred', 'retry')
                                   and waits = 'deferred' and available_at <= :now
                                 limit :limit) as looked) as timed_at

-- name: inbox_consumers
-- The consumers that have records.
select distinct convert(consumer using utf8mb4) from pillarbox_inbox limit :limit

-- name: inbox_activity
-- What each consumer handled of late: of the latest records alone.
select convert(consumer using utf8mb4), count(*), sum(duplicates), max(status_at), min(status_at)
  from (select consumer, duplicates, status_at from pillarbox_inbox
         where status = 'done' and status_at >= :now - :window
         order by status_at desc
         limit :limit) as latest
 group by consumer

-- name: facts
-- The version of the tables and of the server.
select (select max(version) from pillarbox_schema), version(), null

-- name: failed_keys
-- The keys of the latest failed messages of a group.
select distinct `key` from (
    select `key` from pillarbox_history
     where status = 'failed' and destination = :destination and fingerprint <=> :fingerprint
     order by status_at desc
     limit :limit) as latest
 where `key` is not null

-- name: held_keys
-- The keys of the latest held messages of a group.
select distinct `key` from (
    select `key` from pillarbox_outbox
     where waits = 'held' and destination = :destination and fingerprint <=> :fingerprint
     order by status_at desc
     limit :limit) as latest
 where `key` is not null

-- name: key_ids
-- The first open messages of a key: blocked ones by their index, fresh and deferred ones among the first of the lane.
select id from (
    select id from (
        select id from pillarbox_outbox
         where destination = :destination and `partition` = :partition and blocked_key = :key and id > :after
         order by id
         limit :limit) as blocked
    union
    select id from (
        select id, `key` from pillarbox_outbox
         where destination = :destination and `partition` = :partition and waits is null and id > :after
         order by id
         limit :fresh) as fresh
     where `key` = :key
    union
    select id from (
        select id, `key` from pillarbox_outbox
         where destination = :destination and `partition` = :partition and waits in ('deferred', 'retry') and waits = 'deferred'
         limit :fresh) as deferred
     where `key` = :key and id > :after) as open_ones
 order by id
 limit :limit
