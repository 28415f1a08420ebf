-- name: find_waiting
-- Pending messages that wait for their time or behind another: never fresh, so through the index of those that wait, not looking at
-- more than so many.
select id, message_id, destination, partition, kind, type, topic, key,
       case when :payloads then payload when payload is not null then x'' end, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at, 'pending'
  from pillarbox_outbox
 where id in (select id from (
           select id from pillarbox_outbox indexed by pillarbox_outbox_since_idx
            where waits in :waiting and waits is not null and (:of is null or destination = :of)
            limit 100000) as looked)
   and (:parked or waits <> 'parked')
   and id not in (select value from pillarbox_claim join pillarbox_relay using (relay_id),
                   json_each(case when json_valid(message_ids) then message_ids else '[]' end)
                   where value is not null and expires_at > :now) /* where */
 order by id
 limit :limit

-- name: count_later
-- How many messages of a destination are not due yet, up to the limit.
select count(*) from (
    select 1 from pillarbox_outbox indexed by pillarbox_outbox_since_idx
     where destination = :destination and waits in ('deferred', 'retry') and waits is not null
       and coalesce(due_at, case waits when 'deferred' then available_at end, created_at) > :now
     limit :limit) as looked

-- name: count_reason
-- How many messages of a destination wait for one reason, up to the limit.
select count(*) from (
    select 1 from pillarbox_outbox indexed by pillarbox_outbox_since_idx
     where destination = :destination and waits = :waits and waits is not null
     limit :limit) as looked

-- name: lane_backlog
-- How much is due in a lane of a destination, by the indexes that relays read, and since when.
select :partition as number,
       (select count(*) from (select 1 from pillarbox_outbox indexed by pillarbox_outbox_fresh_idx
                               where destination = :destination and partition = :partition and waits is null
                               limit :limit) as looked) as fresh,
       (select count(*) from (select 1 from pillarbox_outbox indexed by pillarbox_outbox_blocked_idx
                               where destination = :destination and partition = :partition and waits in ('retry', 'parked') and waits in ('retry', 'parked', 'held')
                                 and coalesce(due_at, case waits when 'deferred' then available_at end, created_at) <= :now
                               limit :limit) as looked) as blocked,
       (select count(*) from (select 1 from pillarbox_outbox indexed by pillarbox_outbox_due_idx
                               where destination = :destination and partition = :partition and waits in ('deferred', 'retry')
                                 and waits = 'deferred' and available_at <= :now
                               limit :limit) as looked) as timed,
       (select created_at from pillarbox_outbox indexed by pillarbox_outbox_fresh_idx
         where destination = :destination and partition = :partition and waits is null
         order by id
         limit 1) as first_at,
       (select min(since) from (select coalesce(due_at, case waits when 'deferred' then available_at end, created_at) as since from pillarbox_outbox indexed by pillarbox_outbox_blocked_idx
                                 where destination = :destination and partition = :partition and waits in ('retry', 'parked') and waits in ('retry', 'parked', 'held')
                                   and coalesce(due_at, case waits when 'deferred' then available_at end, created_at) <= :now
                                 limit :limit) as looked) as blocked_at,
       (select min(since) from (select coalesce(due_at, case waits when 'deferred' then available_at end, created_at) as since from pillarbox_outbox indexed by pillarbox_outbox_due_idx
                                 where destination = :destination and partition = :partition and waits in ('deferred', 'retry')
                                   and waits = 'deferred' and available_at <= :now
                                 limit :limit) as looked) as timed_at

-- name: inbox_consumers
-- The consumers that have records: one probe of the primary key for each.
with recursive reader (consumer) as (
    select min(consumer) from pillarbox_inbox
    union all
    select (select min(i.consumer) from pillarbox_inbox as i where i.consumer > reader.consumer)
      from reader where reader.consumer is not null
     limit :limit
)
select consumer from reader where consumer is not null

-- name: inbox_activity
-- What each consumer handled of late: of the latest records alone.
select consumer, count(*), sum(duplicates), max(status_at), min(status_at)
  from (select consumer, duplicates, status_at from pillarbox_inbox indexed by pillarbox_inbox_status_idx
         where status = 'done' and status_at >= :now - :window
         order by status_at desc
         limit :limit) as latest
 group by consumer

-- name: facts
-- The version of the tables and of SQLite, and the size of the file.
select (select max(version) from pillarbox_schema), sqlite_version(),
       (select page_count * page_size from pragma_page_count(), pragma_page_size())

-- name: failed_keys
-- The keys of the latest failed messages of a group.
select distinct key from (
    select key from pillarbox_history
     where status = 'failed' and destination = :destination and fingerprint is :fingerprint
     order by status_at desc
     limit :limit) as latest
 where key is not null

-- name: held_keys
-- The keys of the latest held messages of a group.
select distinct key from (
    select key from pillarbox_outbox
     where waits = 'held' and destination = :destination and fingerprint is :fingerprint
     order by status_at desc
     limit :limit) as latest
 where key is not null

-- name: key_ids
-- The first open messages of a key: blocked ones by their index, fresh and deferred ones among the first of the lane.
select id from (
    select id from (
        select id from pillarbox_outbox indexed by pillarbox_outbox_blocked_idx
         where destination = :destination and partition = :partition and key = cast(:key as text) and waits in ('retry', 'parked', 'held') and id > :after
         order by id
         limit :limit) as blocked
    union
    select id from (
        select id, key from pillarbox_outbox indexed by pillarbox_outbox_fresh_idx
         where destination = :destination and partition = :partition and waits is null and id > :after
         order by id
         limit :fresh) as fresh
     where key = cast(:key as text)
    union
    select id from (
        select id, key from pillarbox_outbox indexed by pillarbox_outbox_due_idx
         where destination = :destination and partition = :partition and waits in ('deferred', 'retry') and waits = 'deferred'
         limit :fresh) as deferred
     where key = cast(:key as text) and id > :after) as open_ones
 order by id
 limit :limit
