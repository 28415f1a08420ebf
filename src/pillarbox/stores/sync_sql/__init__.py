"""Stores over a blocking driver: what SQLite and MariaDB share.

They work in threads, one statement after the other. `store` holds the methods, `database` what a store supplies,
`claims` and `rows` what works inside a transaction, and `sql/` the statements whose text is the same for both.
Times are whole microseconds since 1970.
"""
