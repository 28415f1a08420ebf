-- How many messages are selected, open and closed.
select count(*) from pillarbox_messages where state in (select value from json_each(:states)) /* where */
