"""The PostgreSQL store without what only PostgreSQL itself has: for servers that speak its language.

Not used are transaction numbers and snapshots, LISTEN and NOTIFY, advisory locks, triggers and functions, partitions,
and settings of the planner. docs/distributed-sql.md lists what takes their place.
"""
