-- name: rollup_delivered
-- Count deliveries that are about to be closed, and how long they took: of all, and below each bound. Seconds as doubles,
-- for whole numbers may be out of range.
select count(*), sum(latency), max(latency), sum(end_to_end), max(end_to_end),
       sum(latency < 0.005), sum(latency < 0.01), sum(latency < 0.025), sum(latency < 0.05), sum(latency < 0.1),
       sum(latency < 0.25), sum(latency < 0.5), sum(latency < 1), sum(latency < 2.5), sum(latency < 5),
       sum(latency < 10), sum(latency < 30), sum(latency < 60), sum(latency < 300), sum(latency < 1800)
  from (select least(greatest((:now + 0e0 - coalesce(due_at, case waits when 'deferred' then available_at end, created_at)) / 1e6, 0), 1e10) as latency,
               least(greatest((:now + 0e0 - event_time) / 1e6, 0), 1e10) as end_to_end
          from pillarbox_outbox
         where id in :ids and destination = :destination and `partition` in :partitions) as took

-- name: rollup_add
-- Add to the counters of this minute. Each relay has rows of its own, so none waits for another.
insert into pillarbox_rollup (
        minute, destination, relay_id, delivered, failed, retried, discarded, returned, backlog, latency_sum, latency_max, end_to_end_sum,
        end_to_end_max, under_5ms, under_10ms, under_25ms, under_50ms, under_100ms, under_250ms, under_500ms,
        under_1s, under_2500ms, under_5s, under_10s, under_30s, under_1m, under_5m, under_30m, from_30m)
values (
        :now - :now % 60000000, :destination, :relay_id, :delivered, :failed, :retried, :discarded, :returned, :backlog, :latency_sum,
        :latency_max, :end_to_end_sum, :end_to_end_max, :under_5ms, :under_10ms, :under_25ms, :under_50ms,
        :under_100ms, :under_250ms, :under_500ms, :under_1s, :under_2500ms, :under_5s, :under_10s, :under_30s,
        :under_1m, :under_5m, :under_30m, :from_30m)
    on duplicate key update
       delivered = delivered + values(delivered), failed = failed + values(failed), retried = retried + values(retried),
       discarded = discarded + values(discarded), returned = returned + values(returned),
       backlog = greatest(backlog, values(backlog)), latency_sum = latency_sum + values(latency_sum),
       latency_max = greatest(latency_max, values(latency_max)),
       end_to_end_sum = end_to_end_sum + values(end_to_end_sum),
       end_to_end_max = greatest(end_to_end_max, values(end_to_end_max)), under_5ms = under_5ms + values(under_5ms),
       under_10ms = under_10ms + values(under_10ms), under_25ms = under_25ms + values(under_25ms),
       under_50ms = under_50ms + values(under_50ms), under_100ms = under_100ms + values(under_100ms),
       under_250ms = under_250ms + values(under_250ms), under_500ms = under_500ms + values(under_500ms),
       under_1s = under_1s + values(under_1s), under_2500ms = under_2500ms + values(under_2500ms),
       under_5s = under_5s + values(under_5s), under_10s = under_10s + values(under_10s),
       under_30s = under_30s + values(under_30s), under_1m = under_1m + values(under_1m),
       under_5m = under_5m + values(under_5m), under_30m = under_30m + values(under_30m),
       from_30m = from_30m + values(from_30m)

-- name: purge_rollups
-- Delete the counters of old minutes.
delete from pillarbox_rollup where minute <= :now - :older_than order by minute limit :limit
