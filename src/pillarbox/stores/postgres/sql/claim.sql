-- Records a batch as in a relay's hands and parks what must wait, if every lane is still its own.
-- $1 relay, $2 destination, $3 partitions, $4 their epochs, $5 number, $6 ids, $7 strikes, $8 ids to park, $9 now or null
with lanes as materialized (
    select l.partition
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
select partition from lanes
