-- name: reopen
-- Closed messages, and held ones, go back to be sent again: at the end of nobody's queue, never as fresh ones. One whose
-- id another open message has since, after a restore that took the sequence back, gets a new id. One whose key no index
-- takes waits as deferred, and does not block: a relay closes it again.
-- $1 statuses, $2 held too, $3 new destination or null, $4 limit, $5 action, $6 by, $7 reason or null, $8 now or null
with clock as materialized (
    select coalesce($8::timestamptz, statement_timestamp()) as now
), closed as materialized (
    select id, payload is null as bare from pillarbox_history
     where status = any($1::text[]) /* where */
     order by id
     limit $4
), held as materialized (
    select id from pillarbox_outbox
     where $2 and waits = 'held' /* where */
     order by id
     limit $4
), picked as materialized (
    select id, bare from (select id, bare from closed union all select id, false from held) p
     order by id
     limit $4
), moved as (
    delete from pillarbox_history
     where id in (select id from picked where not bare) and status = any($1::text[])
    returning *
), back as (
    insert into pillarbox_outbox (
           id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
           correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at, due_at)
    overriding system value
    select id, message_id, coalesce($3, destination), partition, coalesce(kind, 'event'), type, topic, key, payload,
           coalesce(content_type, 'application/json'), headers, source,
           subject, correlation_id, causation_id, event_time, created_at, now,
           case when octet_length(key) > 1024 then 'deferred' else 'retry' end, 0, last_error, now, now
      from moved, clock
     where id < 4503599627370496 and not exists (select from pillarbox_outbox o where o.id = moved.id)
), anew as (
    insert into pillarbox_outbox (
           message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
           correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at, due_at)
    select message_id, coalesce($3, destination), partition, coalesce(kind, 'event'), type, topic, key, payload,
           coalesce(content_type, 'application/json'), headers, source,
           subject, correlation_id, causation_id, event_time, created_at, now,
           case when octet_length(key) > 1024 then 'deferred' else 'retry' end, 0, last_error, now, now
      from moved, clock
     where not (id < 4503599627370496 and not exists (select from pillarbox_outbox o where o.id = moved.id))
     order by id
), freed as (
    update pillarbox_outbox
       set waits = 'retry', available_at = now, attempts = 0, status_at = now, due_at = now, fingerprint = null,
           destination = coalesce($3, destination)
      from clock
     where id in (select id from picked) and waits = 'held'
    returning id, message_id, destination
), told as (
    insert into pillarbox_journal (message_id, destination, action, at, by, reason)
    select message_id, destination, $5, now, $6, $7::text
      from (select id, message_id, destination from moved union all select id, message_id, destination from freed) m, clock
     order by id
)
select (select count(*) from moved) + (select count(*) from freed), (select max(id) from picked),
       (select count(*) from picked where bare)

-- name: lanes_change
-- Raises the revision of the lanes in which a person is about to change open messages, and returns those messages. A
-- claim locks its lanes too. So this waits for a claim that is not committed, which the next statement then sees; and a
-- later claim sees the new revision. $1 states asked for, $2 limit, $3 now or null, $4 parked ones too
with picked as materialized (
    select id, destination, partition from pillarbox_outbox
     where case when waits = 'held' then 'failed' else 'pending' end = any($1::text[]) and ($4 or waits is distinct from 'parked')
       and id not in (select m.id from pillarbox_claim c join pillarbox_relay r on r.relay_id = c.relay_id, unnest(c.message_ids) as m (id)
                   where m.id is not null and r.expires_at > coalesce($3::timestamptz, statement_timestamp())) /* where */
     order by id
     limit $2
), changed as (
    insert into pillarbox_lane (destination, partition, revision)
    select distinct destination, partition, 1 from picked order by destination, partition
        on conflict (destination, partition) do update set revision = pillarbox_lane.revision + 1
)
select coalesce(array_agg(id), '{}') from picked

-- name: discard
-- Closes failed, held, skipped and waiting messages without sending; what is in a live relay's hands is left alone.
-- The last error stays; the reason is for the journal.
-- $1 states asked for, $2 reason, $3 by, $4 limit, $5 now or null, $6 open messages whose lanes are locked
with clock as materialized (
    select coalesce($5::timestamptz, statement_timestamp()) as now
), failed as materialized (
    select id from pillarbox_history
     where status in ('failed', 'skipped') and status = any($1::text[]) /* where */
     order by id
     limit $4
), open as materialized (
    select id from pillarbox_outbox
     where case when waits = 'held' then 'failed' else 'pending' end = any($1::text[])
       and id = any($6::bigint[])
       and id not in (select m.id from pillarbox_claim c join pillarbox_relay r on r.relay_id = c.relay_id, unnest(c.message_ids) as m (id)
                   where m.id is not null and r.expires_at > coalesce($5::timestamptz, statement_timestamp())) /* where */
     order by id
     limit $4
), picked as materialized (
    select id from (select id from failed union all select id from open) p
     order by id
     limit $4
), renamed as (
    update pillarbox_history set status = 'discarded', status_at = now, fingerprint = null
      from clock
     where id in (select id from picked) and status in ('failed', 'skipped')
    returning id, message_id, destination
), closed as (
    delete from pillarbox_outbox where id in (select id from picked)
    returning *
), kept as (
    insert into pillarbox_history (
           id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
           correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status)
    select case when exists (select from pillarbox_history h where h.id = closed.id)
                then 4503599627370496 + (random() * 4503599627370495)::bigint else id end,
           message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
           correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity'), attempts, last_error, now, 'discarded'
      from closed, clock
), counted as (
    insert into pillarbox_rollup as r (minute, destination, relay_id, discarded)
    select date_trunc('minute', now), destination, '00000000-0000-0000-0000-000000000000', count(*)
      from (select destination from renamed union all select destination from closed) m, clock
     group by now, destination
     order by destination
        on conflict (minute, destination, relay_id) do update set discarded = r.discarded + excluded.discarded
), told as (
    insert into pillarbox_journal (message_id, destination, action, at, by, reason)
    select message_id, destination, 'discarded', now, $3, $2
      from (select id, message_id, destination from renamed union all select id, message_id, destination from closed) m, clock
     order by id
)
select (select count(*) from renamed) + (select count(*) from closed), (select max(id) from picked), 0

-- name: defer
-- Waiting messages wait until a time a person chose, and their keys with them.
-- $1 until, $2 by, $3 limit, $4 reason or null, $5 now or null, $6 open messages whose lanes are locked
with clock as materialized (
    select coalesce($5::timestamptz, statement_timestamp()) as now
), picked as materialized (
    select id from pillarbox_outbox
     where (waits is null or waits in ('deferred', 'retry'))
       and id = any($6::bigint[])
       and id not in (select m.id from pillarbox_claim c join pillarbox_relay r on r.relay_id = c.relay_id, unnest(c.message_ids) as m (id)
                   where m.id is not null and r.expires_at > coalesce($5::timestamptz, statement_timestamp())) /* where */
     order by id
     limit $3
), deferred as (
    update pillarbox_outbox
       set waits = case when octet_length(key) > 1024 then 'deferred' else 'retry' end, available_at = $1, status_at = now,
           due_at = $1
      from clock
     where id in (select id from picked) and (waits is null or waits in ('deferred', 'retry'))
    returning id, message_id, destination
), told as (
    insert into pillarbox_journal (message_id, destination, action, at, by, reason)
    select message_id, destination, 'deferred', now, $2, $4::text from deferred, clock order by id
)
select (select count(*) from deferred), (select max(id) from picked), 0

-- name: purge_delivered
-- Deletes delivered messages that outlived their retention, in the order of their ids, with their journal; returns how
-- many, and up to which id that is done. No index is sorted by age, for every delivery would pay for it: so the ids
-- of a window are walked (history_window). $1 how old, $2 limit, $3 now or null, $4 after which id, $5 up to which id
with expired as materialized (
    select id from pillarbox_history
     where status = 'delivered' and status_at <= coalesce($3::timestamptz, statement_timestamp()) - $1::interval
       and id > $4::bigint and id <= $5::bigint
     order by id
     limit $2
       for update skip locked
), gone as (
    delete from pillarbox_history
     where id = any(array(select id from expired)) and id > $4::bigint and id <= $5::bigint
    returning message_id, destination
), told as (
    delete from pillarbox_journal j using gone where j.message_id = gone.message_id and j.destination = gone.destination
)
select (select count(*) from gone),
       case when (select count(*) from expired) < $2 then $5::bigint else (select max(id) from expired) end

-- name: purge_ended
-- Deletes messages that ended without a delivery and outlived their retention, oldest first in each destination, with
-- their journal; returns how many, and the destination and the time where it stopped. The next call begins there: rows
-- that were deleted stay in the index while an old snapshot could see them, and every call would walk all of them.
-- $1 status, $2 how old, $3 limit, $4 now or null, $5 and $6 destination and time to begin at
with expired as materialized (
    select id, destination, status_at from pillarbox_history
     where status = $1 and status in ('failed', 'skipped', 'discarded')
       and (destination, status_at) >= ($5::text, $6::text::timestamptz)
       and status_at <= coalesce($4::timestamptz, statement_timestamp()) - $2::interval
     order by status, destination, status_at, id
     limit $3
       for update skip locked
), gone as (
    delete from pillarbox_history
     where id = any(array(select id from expired))
       and id >= (select min(id) from expired) and id <= (select max(id) from expired)
    returning message_id, destination
), told as (
    delete from pillarbox_journal j using gone where j.message_id = gone.message_id and j.destination = gone.destination
)
select (select count(*) from gone), max(destination),
       (select max(status_at)::text from expired where destination = (select max(destination) from expired))
  from expired

-- name: purge_archived
-- Deletes the closed messages that an archive has taken, with their journal, if they are still as they were archived: one
-- may have been redriven and closed again. A list says nothing about partitions to the planner, but its least and its
-- greatest id do. $1 ids, $2 states and $3 times of each
with archived as materialized (
    select id, status, status_at
      from unnest($1::bigint[], $2::text[], $3::timestamptz[]) as a (id, status, status_at)
), gone as (
    delete from pillarbox_history h
     where id = any($1::bigint[])
       and id >= (select min(i) from unnest($1::bigint[]) i) and id <= (select max(i) from unnest($1::bigint[]) i)
       and exists (select 1 from archived a where a.id = h.id and a.status = h.status and a.status_at = h.status_at)
    returning message_id, destination
), told as (
    delete from pillarbox_journal j using gone where j.message_id = gone.message_id and j.destination = gone.destination
)
select count(*) from gone

-- name: pause
-- Pause a destination. A second pause keeps the reason of the first. $1 destination, $2 by, $3 reason, $4 now or null
with paused as (
    insert into pillarbox_destination (destination, paused_by, paused_at, reason)
    values ($1, $2, coalesce($4::timestamptz, statement_timestamp()), $3)
        on conflict (destination) do nothing
    returning destination, paused_at
)
insert into pillarbox_journal (destination, action, at, by, reason)
select destination, 'paused', paused_at, $2, $3 from paused

-- name: resume
-- Resume a destination. $1 destination, $2 by, $3 now or null, $4 reason or null
with resumed as (
    delete from pillarbox_destination where destination = $1
    returning destination
)
insert into pillarbox_journal (destination, action, at, by, reason)
select destination, 'resumed', coalesce($3::timestamptz, statement_timestamp()), $2, $4::text from resumed
returning destination

-- name: pauses
-- Which destinations are paused, by whom, since when and why.
select destination, paused_by, paused_at, reason from pillarbox_destination order by destination

-- name: requests
-- What operators ask of destinations: pauses and probes, in one statement.
select destination, paused_by, paused_at, reason, null::timestamptz from pillarbox_destination
union all
select destination, null, null, null, probed_at from pillarbox_probe

-- name: probe
-- Asks relays to try a destination at once, if a live one serves it. $1 destination, $2 by, $3 now or null,
-- $4 lease of a relay's row that has none
with clock as materialized (
    select coalesce($3::timestamptz, statement_timestamp()) as now
), asked as (
    insert into pillarbox_probe (destination, probed_at)
    select $1, now from clock
     where exists (select from pillarbox_relay r
                    where $1 = any(r.destinations) and r.expires_at > now and r.expires_at <= now + coalesce(r.lease, $4::interval))
        on conflict (destination) do update set probed_at = excluded.probed_at
    returning destination, probed_at
)
insert into pillarbox_journal (destination, action, at, by)
select destination, 'probed', probed_at, $2 from asked
returning destination

-- name: record_backlog
-- Counts the due messages of destinations, each up to the limit, and notes the most of this minute. What has none is not
-- written. $1 relay, $2 destinations, $3 limit, $4 now or null
with clock as materialized (
    select coalesce($4::timestamptz, statement_timestamp()) as now
), counted as materialized (
    select d.destination, least((fresh.count + waiting.count), $3) as due
      from unnest($2::text[]) as d (destination)
     cross join clock
     cross join lateral (
            select count(*) from (
                select from pillarbox_outbox o where o.destination = d.destination and o.waits is null
                 order by o.destination
                 limit $3) o
           ) fresh
     cross join lateral (
            select coalesce(sum(one.count), 0)::bigint as count
              from (values ('deferred'), ('retry'), ('parked')) reason (waits)
             cross join lateral (
                    select count(*) from (
                        select from pillarbox_outbox o
                         where o.destination = d.destination and o.waits = reason.waits
                           and coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at) <= clock.now
                         order by o.destination, o.waits, coalesce(o.due_at, case o.waits when 'deferred' then o.available_at end, o.created_at)
                         limit $3) o
                   ) one
           ) waiting
)
insert into pillarbox_rollup as r (minute, destination, relay_id, backlog)
select date_trunc('minute', now), destination, $1, due from counted, clock where due > 0
 order by destination
    on conflict (minute, destination, relay_id) do update set backlog = excluded.backlog
 where r.backlog < excluded.backlog

-- name: purge_journal
-- Deletes old lines that belong to no message. $1 how old, $2 limit, $3 now or null
with gone as (
    delete from pillarbox_journal
     where id = any(array(select id from pillarbox_journal
                           where message_id is null and at <= coalesce($3::timestamptz, statement_timestamp()) - $1::interval
                           order by id
                           limit $2))
    returning 1
)
select count(*) from gone

-- name: purge_rollups
-- Deletes the counters of old minutes. $1 how old, $2 limit, $3 now or null
with gone as (
    delete from pillarbox_rollup
     where ctid = any(array(select ctid from pillarbox_rollup
                             where minute <= coalesce($3::timestamptz, statement_timestamp()) - $1::interval
                             order by minute
                             limit $2
                               for update skip locked))
    returning 1
)
select count(*) from gone

-- name: restore_known
-- The messages of an archive that are there, open or closed. One statement: none is missed that moves meanwhile.
-- $1 message ids
select message_id, destination from pillarbox_outbox where message_id = any($1::uuid[])
union all
select message_id, destination from pillarbox_history where message_id = any($1::uuid[])

-- name: restore_ids
-- Those of some ids that messages have; and the highest that the counter surely gave, as a number below 0. $1 ids
select id from pillarbox_outbox where id = any($1::bigint[])
union all
select id from pillarbox_history where id = any($1::bigint[])
union all
select -coalesce(greatest((select max(id) from pillarbox_outbox where id < 4503599627370496),
                          (select max(id) from pillarbox_history where id < 4503599627370496)), 0)

-- name: restore
-- Puts closed messages of an archive back, with a line in the journal. They count as closed now, so that retention does
-- not delete them again at once. $1 to $21 columns, $22 by, $23 now or null, $24 when they were closed, $25 fingerprints
with clock as materialized (
    select coalesce($23::timestamptz, statement_timestamp()) as now
), back as (
    insert into pillarbox_history (
           id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
           correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status,
           fingerprint)
    select m.id, m.message_id, m.destination, m.partition, m.kind, m.type, m.topic, m.key, m.payload, m.content_type,
           m.headers::jsonb, m.source, m.subject, m.correlation_id, m.causation_id, m.event_time, m.created_at,
           m.available_at, m.attempts, m.last_error, clock.now, m.status, m.fingerprint
      from unnest($1::bigint[], $2::uuid[], $3::text[], $4::smallint[], $5::text[], $6::text[], $7::text[], $8::text[],
                  $9::bytea[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[],
                  $16::timestamptz[], $17::timestamptz[], $18::timestamptz[], $19::integer[], $20::text[], $21::text[],
                  $25::text[])
           as m (id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source,
                 subject, correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status,
                 fingerprint),
           clock
)
insert into pillarbox_journal (message_id, destination, action, at, by, detail)
select m.message_id, m.destination, 'restored', clock.now, $22, m.detail
  from unnest($2::uuid[], $3::text[], $24::text[]) as m (message_id, destination, detail), clock

-- name: history_extend
-- Adds partitions of history ahead of the ids; returns how many.
select pillarbox_history_extend()

-- name: history_detached
-- The partitions that were taken out of history and are not removed yet: a relay ended meanwhile.
select substring(c.relname from '\d+$')::bigint
  from pg_class c
  join pg_class h on h.oid = 'pillarbox_history'::regclass and h.relnamespace = c.relnamespace and h.relowner = c.relowner
 where starts_with(c.relname, h.relname || '_p') and substr(c.relname, length(h.relname) + 3) ~ '^\d+$'
   and c.relkind = 'r' and not c.relispartition
   and starts_with(obj_description(c.oid, 'pg_class'), 'pillarbox detached {')

-- name: history_partitions
-- The partitions of history whose ids have all been given: number, first and last id that may be in it, the first id that is
-- in it, and when its first and its last message were written.
with part as materialized (
    select substring(c.relname from '\d+$')::bigint as number,
           coalesce(substring(bound from 'FROM \(''?(-?\d+)')::bigint, -9223372036854775807) as low,
           substring(bound from 'TO \(''?(\d+)')::bigint - 1 as high
      from pg_inherits i
      join pg_class c on c.oid = i.inhrelid
     cross join lateral pg_get_expr(c.relpartbound, c.oid) as bound
     where i.inhparent = 'pillarbox_history'::regclass and bound like '% TO (%'
), given as materialized (
    select greatest((select max(id) from pillarbox_history where id < 4503599627370496),
                    (select max(id) from pillarbox_outbox where id < 4503599627370496)) as id
)
select number, low, high, first.id, first.created_at, last.created_at
  from part
  left join lateral (select h.id, h.created_at from pillarbox_history h
                      where h.id >= part.low and h.id <= part.high order by h.id limit 1) first on true
  left join lateral (select h.created_at from pillarbox_history h
                      where h.id >= part.low and h.id <= part.high order by h.id desc limit 1) last on true
 where high < (select id from given)

-- name: history_stays
-- The closed messages of some ids that retention must keep. $1 to $2 ids, $3 to $6 the times before which delivered, failed,
-- skipped and discarded messages go, null for never, $7 limit
select id from pillarbox_history
 where id >= $1::bigint and id <= $2::bigint
   and (status_at < case status when 'delivered' then $3::timestamptz when 'failed' then $4::timestamptz
                                when 'skipped' then $5::timestamptz when 'discarded' then $6::timestamptz end) is not true
 order by id
 limit $7

-- name: history_open
-- How many open messages have some ids, up to a limit: they will be closed one day. $1 to $2 ids, $3 limit
select count(*) from (select from pillarbox_outbox where id >= $1::bigint and id <= $2::bigint limit $3) o

-- name: history_detach
-- Takes a partition out of history, but for messages to keep. $1 number, $2 ids to keep, $3 times, as JSON
select pillarbox_history_detach($1::bigint, $2::bigint[], $3::text::jsonb)

-- name: history_remove
-- Removes what a detached partition has, step by step, and in the end the table. $1 number, $2 after which id, $3 how many
select removed, next_after from pillarbox_history_remove($1::bigint, $2::bigint, $3::integer)
