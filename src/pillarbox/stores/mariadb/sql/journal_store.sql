-- What a person did to the store as a whole.
insert into pillarbox_journal (destination, action, at, `by`, detail)
values ('*', %(action)s, %(now)s, %(by)s, %(detail)s)
