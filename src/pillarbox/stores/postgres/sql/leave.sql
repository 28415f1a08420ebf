-- A relay goes: its lanes are free, its claims are void. $1 relay
with lanes as (
    update pillarbox_lane set relay_id = null where relay_id = $1
), claims as (
    delete from pillarbox_claim where relay_id = $1
)
delete from pillarbox_relay where relay_id = $1
