-- name: schema_version
-- Return the version of the schema that is installed.
select max(version) from pillarbox_schema
