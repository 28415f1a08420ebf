-- What a person did with a message of an inbox.
insert into pillarbox_journal (destination, action, at, `by`, error, detail)
values (concat('inbox:', %(consumer)s), %(action)s, %(now)s, %(by)s, %(reason)s, concat(%(source)s, ' ', %(message_id)s))
