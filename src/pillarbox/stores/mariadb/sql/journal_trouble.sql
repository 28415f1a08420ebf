-- What went wrong with a message, told by the relay.
insert into pillarbox_journal (message_id, destination, action, at, `by`, attempt, error, detail)
values (%(message_id)s, %(destination)s, %(action)s, %(now)s, %(relay_id)s, %(attempts)s, %(error)s, %(detail)s)
