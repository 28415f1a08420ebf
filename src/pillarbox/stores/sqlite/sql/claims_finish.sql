-- Claims with nothing left in them.
delete from pillarbox_claim
 where relay_id = :relay_id and number in (select value from json_each(:numbers))
