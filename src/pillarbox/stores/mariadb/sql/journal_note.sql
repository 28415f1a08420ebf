-- What a person did, to a message or to a destination.
insert into pillarbox_journal (message_id, destination, action, at, `by`, error)
values (%(message_id)s, %(destination)s, %(action)s, %(now)s, %(by)s, %(reason)s)
