-- name: reopen_held
-- Schedule held messages for retry at once.
update pillarbox_outbox
   set waits = 'retry', available_at = :now, due_at = :now, attempts = 0, status_at = :now,
       destination = coalesce(:to, destination), fingerprint = null
 where id in :ids and waits = 'held'

-- name: reopen_closed
-- Reopen closed messages for retry under their old ids. As fresh ones they would be missed: a relay may have read past
-- them. After reopen_anew. One whose key no index of MySQL takes waits as deferred, and does not block: a relay closes it
-- again.
insert into pillarbox_outbox (
       id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at, due_at)
select id, message_id, coalesce(:to, destination), `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at,
       :now, case when length(`key`) > 1024 then 'deferred' else 'retry' end, 0, last_error, :now, :now
  from pillarbox_history as h
 where id in :ids and id < 4503599627370496 and not exists (select 1 from pillarbox_outbox as o where o.id = h.id)

-- name: reopen_anew
-- Reopen closed messages under new ids whose old ones other open messages have since, after a restore that took the
-- counter back.
insert into pillarbox_outbox (
       message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error, status_at, due_at)
select message_id, coalesce(:to, destination), `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at,
       :now, case when length(`key`) > 1024 then 'deferred' else 'retry' end, 0, last_error, :now, :now
  from pillarbox_history as h
 where id in :ids and (id >= 4503599627370496 or exists (select 1 from pillarbox_outbox as o where o.id = h.id))
 order by id

-- name: discard_failed
-- Mark failed and skipped messages in the history as discarded. The last error stays; the reason is for the journal.
update pillarbox_history set status = 'discarded', status_at = :now, fingerprint = null
 where id in :ids and status in ('failed', 'skipped')

-- name: discard_open
-- Copy open messages into the history as discarded.
insert into pillarbox_history (
       id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status)
select case when exists (select 1 from pillarbox_history as h where h.id = o.id)
            then 4503599627370496 + /* random */ else id end,
       message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, nullif(available_at, 9223372036854775807), attempts, last_error,
       :now, 'discarded'
  from pillarbox_outbox as o
 where id in :ids

-- name: close_discarded
-- Delete discarded messages from the open table, after they were copied.
delete from pillarbox_outbox where id in :ids

-- name: defer
-- Let pending messages wait until a given time. As retries they also block their key.
update pillarbox_outbox
   set waits = case when length(`key`) > 1024 then 'deferred' else 'retry' end, available_at = :until, due_at = :until,
       status_at = :now
 where id in :ids

-- name: delete_closed
-- Delete closed messages that were reopened or purged.
delete from pillarbox_history where id in :ids

-- name: resume
-- Resume a destination.
delete from pillarbox_destination where destination = :destination

-- name: pauses
-- The paused destinations.
select destination, paused_by, paused_at, reason from pillarbox_destination order by destination

-- name: requests
-- What operators ask of destinations: pauses and probes, in one statement.
select destination, paused_by, paused_at, reason, null from pillarbox_destination
union all
select destination, null, null, null, probed_at from pillarbox_probe
 order by 1

-- name: restore_known
-- The messages of an archive that are there, open or closed. One statement: none is missed that moves meanwhile.
select message_id, destination from pillarbox_outbox where message_id in :message_ids
union all
select message_id, destination from pillarbox_history where message_id in :message_ids

-- name: restore_taken
-- Those of some ids that messages have.
select id from pillarbox_outbox where id in :ids
union all
select id from pillarbox_history where id in :ids

-- name: restore_highest
-- The highest id that the counter surely gave.
select coalesce(max(id), 0)
  from (select max(id) as id from pillarbox_outbox where id < 4503599627370496
        union all
        select max(id) from pillarbox_history where id < 4503599627370496) as highest

-- name: restore
-- Put a closed message of an archive back. It counts as closed now, so that retention does not delete it again at once.
insert into pillarbox_history (
       id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source, subject,
       correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status,
       fingerprint)
values (:id, :message_id, :destination, :partition, :kind, :type, :topic, :key, :payload, :content_type, :headers, :source,
       :subject, :correlation_id, :causation_id, :event_time, :created_at, :available_at, :attempts, :last_error, :now,
       :state, :fingerprint)
