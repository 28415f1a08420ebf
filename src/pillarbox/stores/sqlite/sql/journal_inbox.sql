-- What a person did with a message of an inbox.
insert into pillarbox_journal (destination, action, at, by, error, detail)
values ('inbox:' || :consumer, :action, :now, :by, :reason, :source || ' ' || :message_id)
