-- How many messages are selected, open and closed.
select count(*) from pillarbox_messages where state in %(states)s /* where */
