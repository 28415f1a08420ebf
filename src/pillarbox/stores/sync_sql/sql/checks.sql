-- name: schema_version
-- Return the version of the schema that is installed.
select max(version) from pillarbox_schema

-- name: schema_declared
-- Return the version, and the oldest releases that may read and write the tables. A version that declares nothing is for
-- its own releases alone.
select max(version), max(coalesce(readable_from, version)), max(coalesce(writable_from, version))
  from pillarbox_schema
