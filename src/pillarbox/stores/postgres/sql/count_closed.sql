-- How many closed messages match. $1 states
select count(*) from pillarbox_history where status = any($1::text[]) /* where */
