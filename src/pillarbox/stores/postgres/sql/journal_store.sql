-- What a person did to the store as a whole. $1 action, $2 by, $3 detail, $4 now or null
insert into pillarbox_journal (destination, action, at, by, detail)
values ('*', $1, coalesce($4::timestamptz, statement_timestamp()), $2, $3)
