-- Relays have labels.

-- A JSON object of texts, which the relay's settings name. Null: it has none, or an older release wrote the row.
alter table pillarbox_relay add column labels text;
