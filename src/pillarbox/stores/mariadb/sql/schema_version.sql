-- Which version the tables are of.
select max(version) from pillarbox_schema
