-- Takes ids out of claims; a claim left with nothing goes. $1 relay, $2 ids
with lessened as (
    update pillarbox_claim
       set message_ids = array(select unnest(message_ids) except select unnest($2::bigint[]))
     where relay_id = $1 and message_ids && $2::bigint[] and not message_ids <@ $2::bigint[]
)
delete from pillarbox_claim where relay_id = $1 and message_ids <@ $2::bigint[]
