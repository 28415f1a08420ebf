-- name: claiming_view
-- Parameters of a claim. SQLite has no procedures: an insert into this view runs the statements of its trigger.
create temp view pillarbox_claiming as
select null as destination, null as relay_id, null as epochs, null as lanes, null as number, null as message_ids,
       null as strikes, null as now

-- name: claiming_trigger
-- Record a batch as claimed, if the fence holds. `epochs` is a JSON object from partition to epoch.
create temp trigger pillarbox_claiming_trg instead of insert on pillarbox_claiming
begin
    select raise(abort, 'fenced')
     where (select count(*) from json_each(new.epochs) as held
             cross join pillarbox_lane as l on l.destination = new.destination and l.partition = cast(held.key as integer)
             where l.relay_id = new.relay_id and l.epoch = held.value) <> new.lanes;
    insert into pillarbox_claim (relay_id, number, message_ids, strikes, claimed_at)
    values (new.relay_id, new.number, new.message_ids, new.strikes, new.now)
        on conflict (relay_id, number) do nothing;
end

-- name: claim_at_once
-- Check the fence and record a batch as claimed; return the revisions of the lanes.
insert into pillarbox_claiming (destination, relay_id, epochs, lanes, number, message_ids, strikes, now)
values (:destination, :relay_id, :epochs, :lanes, :number, :message_ids, :strikes, :now)
returning (select json_group_object(l.partition, l.revision)
             from json_each(epochs) as held
            cross join pillarbox_lane as l on l.destination = :destination and l.partition = cast(held.key as integer))

-- name: delivering_view
-- Parameters of a settlement of deliveries.
create temp view pillarbox_delivering as
select null as destination, null as relay_id, null as epochs, null as lanes, null as mask, null as ids,
       null as message_ids, null as number, null as claims, null as finished, null as touched, null as keep, null as now

-- name: delivering_trigger
-- Close messages as delivered, count them, and take them out of their claims: all of them, or none.
-- `ids` and `message_ids` are in the order of the ids. Bit n of `mask` stands for lane n.
create temp trigger pillarbox_delivering_trg instead of insert on pillarbox_delivering
begin
    select raise(abort, 'fenced')
     where (select count(*) from json_each(new.epochs) as held
             cross join pillarbox_lane as l on l.destination = new.destination and l.partition = cast(held.key as integer)
             where l.relay_id = new.relay_id and l.epoch = held.value) <> new.lanes;
    -- Mostly it is one claim, as it was written.
    select raise(abort, 'not claimed')
     where not exists (select 1 from pillarbox_claim
                        where relay_id = new.relay_id and number in (select value from json_each(new.claims))
                          and message_ids = new.ids)
       and (select count(distinct claimed.value) from pillarbox_claim as c cross join json_each(c.message_ids) as claimed
             where c.relay_id = new.relay_id and c.number in (select value from json_each(new.claims))
               and claimed.value in (select value from json_each(new.ids))) <> new.number;
    -- Nothing is counted unless every row is there, in these lanes, and has the message that was sent. Most batches lie
    -- within one bucket: then no row is compared with the bounds. The limit keeps SQLite from counting for every column.
    insert into pillarbox_rollup (
           minute, destination, relay_id, delivered, latency_sum, latency_max, end_to_end_sum, end_to_end_max,
           under_5ms, under_10ms, under_25ms, under_50ms, under_100ms, under_250ms, under_500ms, under_1s,
           under_2500ms, under_5s, under_10s, under_30s, under_1m, under_5m, under_30m, from_30m)
    select new.now - new.now % 60000000, new.destination, new.relay_id, delivered, latency_sum / 1e6, longest / 1e6,
           end_to_end_sum / 1e6, end_to_end_max / 1e6, b0, b1 - b0, b2 - b1, b3 - b2, b4 - b3, b5 - b4, b6 - b5, b7 - b6,
           b8 - b7, b9 - b8, b10 - b9, b11 - b10, b12 - b11, b13 - b12, b14 - b13, delivered - b14
      from (select delivered, latency_sum, longest, end_to_end_sum, end_to_end_max,
                   coalesce(json_extract(below, '$[0]'), (longest < 5000) * delivered) as b0,
                   coalesce(json_extract(below, '$[1]'), (longest < 10000) * delivered) as b1,
                   coalesce(json_extract(below, '$[2]'), (longest < 25000) * delivered) as b2,
                   coalesce(json_extract(below, '$[3]'), (longest < 50000) * delivered) as b3,
                   coalesce(json_extract(below, '$[4]'), (longest < 100000) * delivered) as b4,
                   coalesce(json_extract(below, '$[5]'), (longest < 250000) * delivered) as b5,
                   coalesce(json_extract(below, '$[6]'), (longest < 500000) * delivered) as b6,
                   coalesce(json_extract(below, '$[7]'), (longest < 1000000) * delivered) as b7,
                   coalesce(json_extract(below, '$[8]'), (longest < 2500000) * delivered) as b8,
                   coalesce(json_extract(below, '$[9]'), (longest < 5000000) * delivered) as b9,
                   coalesce(json_extract(below, '$[10]'), (longest < 10000000) * delivered) as b10,
                   coalesce(json_extract(below, '$[11]'), (longest < 30000000) * delivered) as b11,
                   coalesce(json_extract(below, '$[12]'), (longest < 60000000) * delivered) as b12,
                   coalesce(json_extract(below, '$[13]'), (longest < 300000000) * delivered) as b13,
                   coalesce(json_extract(below, '$[14]'), (longest < 1800000000) * delivered) as b14
              from (select delivered, sent, latency_sum, longest, end_to_end_sum, end_to_end_max,
                           case when (select count(*) from json_each(
                                          '[5e3,1e4,2.5e4,5e4,1e5,2.5e5,5e5,1e6,2.5e6,5e6,1e7,3e7,6e7,3e8,1.8e9]')
                                       where value > shortest and value <= longest) > 0
                                then (select json_array(
                                             sum(latency < 5000), sum(latency < 10000), sum(latency < 25000),
                                             sum(latency < 50000), sum(latency < 100000), sum(latency < 250000),
                                             sum(latency < 500000), sum(latency < 1000000), sum(latency < 2500000),
                                             sum(latency < 5000000), sum(latency < 10000000), sum(latency < 30000000),
                                             sum(latency < 60000000), sum(latency < 300000000),
                                             sum(latency < 1800000000))
                                        from (select new.now - coalesce(due_at, case waits when 'deferred' then available_at end, created_at) as latency
                                                from pillarbox_outbox where id in (select value from json_each(new.ids))
                                               limit -1))
                            end as below
                      from (select count(*) as delivered, '["' || group_concat(message_id, '","') || '"]' as sent,
                                   sum(min(max(latency, 0), 1e16)) as latency_sum,
                                   min(max(min(latency), 0), 1e16) as shortest, min(max(max(latency), 0), 1e16) as longest,
                                   sum(min(max(new.now - event_time, 0), 1e16)) as end_to_end_sum,
                                   min(max(max(new.now - event_time), 0), 1e16) as end_to_end_max
                              from (select message_id, event_time,
                                           new.now - coalesce(due_at, case waits when 'deferred' then available_at end, created_at) as latency
                                      from pillarbox_outbox
                                     where id in (select value from json_each(new.ids))
                                       and +destination = new.destination and (new.mask >> partition) & 1))
                     where delivered = new.number and sent = new.message_ids
                     limit 1)
             where true
             limit 1)
     where true
        /* on conflict */;
    select raise(abort, 'not as it was sent') where changes() <> 1;
    insert into pillarbox_history (
           id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
           correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status,
           relay_id)
    select id, message_id, destination, partition, kind, type, topic, key, case new.keep when 'full' then payload end,
           content_type, headers, source, subject, correlation_id, causation_id, event_time, created_at,
           nullif(available_at, 9223372036854775807), attempts, last_error, new.now, 'delivered', new.relay_id
      from pillarbox_outbox
     where id in (select value from json_each(case new.keep when 'off' then '[]' else new.ids end));
    delete from pillarbox_journal
     where (message_id, destination) in (
            select message_id, destination from pillarbox_outbox
             where id in (select value from json_each(case new.keep when 'off' then new.ids else '[]' end)));
    delete from pillarbox_outbox where id in (select value from json_each(new.ids));
    delete from pillarbox_claim
     where relay_id = new.relay_id and number in (select value from json_each(new.finished));
    update pillarbox_claim
       set message_ids = (select json_group_array(value) from json_each(pillarbox_claim.message_ids)
                           where value not in (select value from json_each(new.ids)))
     where relay_id = new.relay_id and number in (select value from json_each(new.touched));
    delete from pillarbox_claim
     where relay_id = new.relay_id and number in (select value from json_each(new.touched)) and message_ids = '[]';
end

-- name: deliver_at_once
-- Check the fence and the claims, and close messages as delivered.
insert into pillarbox_delivering (
       destination, relay_id, epochs, lanes, mask, ids, message_ids, number, claims, finished, touched, keep, now)
values (:destination, :relay_id, :epochs, :lanes, :mask, :ids, :message_ids, :number, :claims, :finished, :touched, :keep,
       :now)
