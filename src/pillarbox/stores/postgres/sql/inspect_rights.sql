-- Which of the rights that a relay needs this login lacks. A table that is missing is told elsewhere.
-- $1 tables, $2 rights, $3 columns or null
select relation, privilege, attribute
  from unnest($1::text[], $2::text[], $3::text[]) asked (relation, privilege, attribute)
 where not case when attribute is null then has_table_privilege(to_regclass(relation)::oid, privilege)
                else has_column_privilege(to_regclass(relation)::oid, attribute, privilege) end
