-- name: claim
-- Records a batch as in a relay's hands and parks what must wait, if every lane is still its own.
-- $1 relay, $2 destination, $3 partitions, $4 their epochs, $5 number, $6 ids, $7 strikes, $8 ids to park, $9 now or null
with lanes as materialized (
    select l.partition, l.revision
      from unnest($3::smallint[], $4::bigint[]) as f (partition, epoch)
      join pillarbox_lane l on l.destination = $2 and l.partition = f.partition
     where l.relay_id = $1 and l.epoch = f.epoch
       for share of l
), fence as materialized (
    select count(*) = cardinality($3::smallint[]) as holds from lanes
), claimed as (
    insert into pillarbox_claim (relay_id, number, message_ids, strikes, claimed_at)
    select $1, $5, $6::bigint[], $7, coalesce($9::timestamptz, statement_timestamp())
     where (select holds from fence) and cardinality($6::bigint[]) > 0
        on conflict (relay_id, number) do nothing
), parked as (
    update pillarbox_outbox
       set waits = 'parked', available_at = 'infinity', status_at = coalesce($9::timestamptz, statement_timestamp())
     where id = any($8::bigint[]) and destination = $2 and partition = any($3::smallint[]) and (waits is null or waits = 'deferred')
       and (select holds from fence)
)
select partition, revision from lanes

-- name: settle
-- Closes delivered messages and takes ids out of their claims, if every lane is still the relay's own.
-- $1 relay, $2 destination, $3 partitions, $4 their epochs, $5 delivered ids, $6 finished claims, $7 touched claims,
-- $8 ids to take out of those, $9 keep, $10 now or null, $11 message ids of the delivered ids, which are in order, or
-- none: an id that the database gave to a later message after it lost commits is left alone. $12 an id that history has
-- already may be replaced: see record_failures
with lanes as materialized (
    select l.partition
      from unnest($3::smallint[], $4::bigint[]) as f (partition, epoch)
      join pillarbox_lane l on l.destination = $2 and l.partition = f.partition
     where l.relay_id = $1 and l.epoch = f.epoch
       for share of l
), fence as materialized (
    select count(*) = cardinality($3::smallint[]) as holds from lanes
), closed as (
    delete from pillarbox_outbox
     where id = any($5::bigint[]) and destination = $2 and partition = any($3::smallint[]) and (select holds from fence)
       and message_id = coalesce(($11::uuid[])[width_bucket(id, $5::bigint[])], message_id)
    returning *
), kept as (
    insert into pillarbox_history (
        id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status, relay_id)
    select case when $12::boolean and exists (select from pillarbox_history h where h.id = c.id)
                then 4503599627370496 + (random() * 4503599627370495)::bigint else id end,
           message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity'), attempts, last_error, coalesce($10::timestamptz, statement_timestamp()), 'delivered', $1
      from (select id, message_id, destination, partition, kind, type, topic, key,
                   case $9::text when 'full' then payload end as payload, content_type, headers, source, subject,
                   correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error
              from closed) c
     where $9::text <> 'off'
), forgotten as (
    delete from pillarbox_journal j using closed c
     where $9::text = 'off' and j.message_id = c.message_id and j.destination = c.destination
), finished as (
    delete from pillarbox_claim
     where relay_id = $1 and number = any($6::bigint[]) and (select holds from fence)
), touched as (
    update pillarbox_claim
       set message_ids = array(select unnest(message_ids) except select unnest($8::bigint[]))
     where relay_id = $1 and number = any($7::bigint[]) and (select holds from fence)
)
select partition from lanes

-- name: record_failures
-- Closes or puts off messages that were not delivered, with a line in the journal for each. Runs behind settle's fence.
-- An id that history has already, after a restore that took the sequence back, is replaced by one above 2^52: no
-- sequence gets there, and a redrive gives such a message a new id.
-- $1 relay, $2 destination, $3 partitions, $4 ids, $5 states, $6 waits, $7 attempts, $8 errors, $9 delays, $10 details,
-- $11 actions (null: no line), $12 destinations to forward to (null: none), $13 message ids (null: the id decides),
-- $14 now or null
with trouble as materialized (
    select *, coalesce($14::timestamptz, statement_timestamp()) as now
      from unnest($4::bigint[], $5::text[], $6::text[], $7::integer[], $8::text[], $9::interval[], $10::text[], $11::text[],
                  $12::text[], $13::uuid[])
        as t (message, state, waits_for, spent, error, delay, detail, action, forward_to, sent)
), closed as (
    delete from pillarbox_outbox o using trouble t
     where o.id = any($4::bigint[]) and o.id = t.message and t.state <> 'pending' and t.forward_to is null
       and o.destination = $2 and o.partition = any($3::smallint[]) and o.message_id = coalesce(t.sent, o.message_id)
    returning o.*, t.*
), kept as (
    insert into pillarbox_history (
        id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status, relay_id)
    select case when exists (select from pillarbox_history h where h.id = closed.id)
                then 4503599627370496 + (random() * 4503599627370495)::bigint else id end,
           message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 'infinity'), spent, error, now, state, $1
      from closed
), waiting as (
    update pillarbox_outbox o
       set waits = t.waits_for, attempts = t.spent, last_error = coalesce(t.error, o.last_error), status_at = t.now,
           available_at = case when t.waits_for in ('parked', 'held') then 'infinity' else t.now + coalesce(t.delay, interval '0') end
      from trouble t
     where o.id = any($4::bigint[]) and o.id = t.message and t.state = 'pending'
       and o.destination = $2 and o.partition = any($3::smallint[]) and o.message_id = coalesce(t.sent, o.message_id)
    returning o.id, o.message_id, o.destination, t.*
), forwarded as (
    update pillarbox_outbox o
       set destination = t.forward_to, waits = 'retry', available_at = t.now, attempts = 0,
           last_error = coalesce(t.error, o.last_error), status_at = t.now
      from trouble t
     where o.id = any($4::bigint[]) and o.id = t.message and t.forward_to is not null
       and o.destination = $2 and o.partition = any($3::smallint[]) and o.message_id = coalesce(t.sent, o.message_id)
    returning o.id, o.message_id, t.*
)
insert into pillarbox_journal (message_id, destination, action, at, by, attempt, error, detail)
select message_id, destination, action, now, $1::uuid::text, spent, error, detail
  from (select id, message_id, destination, action, now, spent, error, detail from closed
        union all
        select id, message_id, destination, action, now, spent, error, detail from waiting
        union all
        select id, message_id, $2, action, now, spent, error, detail from forwarded
        union all
        select id, message_id, $2, 'redriven', now, null, null, null from forwarded) told
 where action is not null

-- name: claims_trim
-- Takes ids out of a relay's claims; a claim left with nothing goes. $1 relay, $2 ids
with lessened as (
    update pillarbox_claim
       set message_ids = array(select unnest(message_ids) except select unnest($2::bigint[]))
     where relay_id = $1 and message_ids && $2::bigint[] and not message_ids <@ $2::bigint[]
)
delete from pillarbox_claim where relay_id = $1 and message_ids <@ $2::bigint[]

-- name: claims_free
-- Takes messages that an operator changes out of the claims of relays that are gone: no takeover may find them there.
-- $1 ids, $2 now or null
update pillarbox_claim c
   set message_ids = array(select unnest(message_ids) except select unnest($1::bigint[]))
 where message_ids && $1::bigint[]
   and not exists (select from pillarbox_relay r
                    where r.relay_id = c.relay_id and r.expires_at > coalesce($2::timestamptz, statement_timestamp()))

-- name: claims_in_lanes
-- The ids in a relay's claims that are open in these lanes. $1 relay, $2 destination, $3 partitions
select o.id
  from pillarbox_claim c cross join lateral unnest(c.message_ids) as m (id)
  join pillarbox_outbox o on o.id = m.id
 where c.relay_id = $1 and o.destination = $2 and o.partition = any($3::smallint[])

-- name: claims_recover
-- One claim of the new owner per count of strikes, for what these relays have claimed in the lanes. Only numbers are
-- returned: a new owner that freezes while it receives more would keep the lanes locked. A claim that its relay is
-- still writing is passed over: its messages are read as any others, and only their strikes are not known. After a lost
-- answer the claims of the first try are among the claims. $1 relay, $2 relays, $3 destination, $4 partitions,
-- $5 first number, $6 now or null
with held as materialized (
    select strikes, message_ids from pillarbox_claim
     where relay_id = any($2::uuid[])
       for update skip locked
), moved as materialized (
    select o.id, least(greatest(max(held.strikes), 0), 1000000) as strikes
      from held cross join lateral unnest(held.message_ids) as m (id)
      join pillarbox_outbox o on o.id = m.id
     where o.destination = $3 and o.partition = any($4::smallint[])
     group by o.id
)
insert into pillarbox_claim (relay_id, number, message_ids, strikes, claimed_at)
select $1, $5::bigint - 1 + row_number() over (order by strikes), array_agg(id), strikes,
       coalesce($6::timestamptz, statement_timestamp())
  from moved
 group by strikes
    on conflict (relay_id, number) do update
   set message_ids = array(select unnest(pillarbox_claim.message_ids) union select unnest(excluded.message_ids)),
       strikes = greatest(pillarbox_claim.strikes, excluded.strikes)
returning number, strikes

-- name: claims_hand_over
-- Takes what is in the new owner's claims out of the old ones. $1 relay, $2 numbers of its claims, $3 relays
with moved as materialized (
    select array_agg(m.id) as ids
      from pillarbox_claim c cross join lateral unnest(c.message_ids) as m (id)
     where c.relay_id = $1 and c.number = any($2::bigint[])
), held as materialized (
    select relay_id, number from pillarbox_claim
     where relay_id = any($3::uuid[]) and not (relay_id = $1 and number = any($2::bigint[]))
       for update skip locked
), lessened as (
    update pillarbox_claim c
       set message_ids = array(select unnest(c.message_ids) except select unnest(moved.ids))
      from held, moved
     where c.relay_id = held.relay_id and c.number = held.number
       and c.message_ids && moved.ids and not c.message_ids <@ moved.ids
)
delete from pillarbox_claim c using held, moved
 where c.relay_id = held.relay_id and c.number = held.number and c.message_ids <@ moved.ids

-- name: claims_read
-- The open messages of a relay's claims, each with the number of its claim, without payload and headers: a dead relay
-- may have had many. $1 relay, $2 numbers, $3 destination, $4 partitions
select o.id, o.message_id, o.destination, o.partition, o.kind, o.type, o.topic, o.key, ''::bytea, o.content_type, null::jsonb,
       o.source, o.subject, o.correlation_id, o.causation_id, o.event_time, o.created_at, nullif(o.available_at, 'infinity'),
       o.waits, o.attempts, o.last_error, o.status_at, c.number
  from pillarbox_claim c cross join lateral unnest(c.message_ids) as m (id)
  join pillarbox_outbox o on o.id = m.id
 where c.relay_id = $1 and c.number = any($2::bigint[]) and o.destination = $3 and o.partition = any($4::smallint[])

-- name: claims_forget
-- Removes claims of relays that are gone when nothing in them is open: no takeover needs those.
delete from pillarbox_claim c
 where not exists (select from pillarbox_relay r where r.relay_id = c.relay_id)
   and not exists (select from pillarbox_outbox o where o.id = any(c.message_ids))
