"""A plain script that writes to an SQLite file, and a partner who hears of it by signed webhooks."""
