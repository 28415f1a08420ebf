-- name: rollups
-- The counters of each destination and step of minutes, of all relays together.
select destination, minute - minute % :step as began, sum(delivered), sum(failed), sum(retried), sum(discarded),
       sum(returned), max(backlog), sum(latency_sum), max(latency_max), sum(end_to_end_sum),
       max(end_to_end_max), sum(under_5ms), sum(under_10ms), sum(under_25ms), sum(under_50ms), sum(under_100ms),
       sum(under_250ms), sum(under_500ms), sum(under_1s), sum(under_2500ms), sum(under_5s), sum(under_10s),
       sum(under_30s), sum(under_1m), sum(under_5m), sum(under_30m), sum(from_30m)
  from pillarbox_rollup
 where minute >= :now - :window - (:now - :window) % 60000000
 group by began, destination
 order by began, destination
