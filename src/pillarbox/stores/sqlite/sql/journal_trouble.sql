-- What went wrong with a message, told by the relay.
insert into pillarbox_journal (message_id, destination, action, at, by, attempt, error, detail)
values (:message_id, :destination, :action, :now, :relay_id, :attempts, :error, :detail)
