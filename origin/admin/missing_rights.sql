-- A command for each right that this user lacks on what nodes read, or of the rights $3 on the tables of the schemas $1 and the names $2, and if
-- row level security may hide their rows.
WITH wanted AS (SELECT schema, name FROM unnest($1::text[], $2::text[]) w (schema, name)),
found AS (SELECT c.oid, schema, name FROM wanted JOIN pg_namespace n ON nspname = schema JOIN pg_class c ON relnamespace = n.oid AND relname = name)
SELECT DISTINCT format('GRANT USAGE ON SCHEMA %I TO %I', schema, current_user) FROM found WHERE NOT has_schema_privilege(schema, 'USAGE')
UNION ALL
SELECT format('GRANT %s ON %I.%I TO %I', $3::text, schema, name, current_user) FROM found
WHERE EXISTS (SELECT FROM unnest(string_to_array($3::text, ', ')) r WHERE NOT has_table_privilege(oid, r))
UNION ALL
SELECT format('GRANT EXECUTE ON FUNCTION public.%I(%s) TO %I', proname, pg_get_function_identity_arguments(oid), current_user) FROM pg_proc
WHERE pronamespace = 'public'::regnamespace AND proname IN ('listedge_fold', 'listedge_fold_letters', 'listedge_name_key', 'listedge_search_grams') AND NOT has_function_privilege(oid, 'EXECUTE')
UNION ALL
SELECT DISTINCT format('ALTER ROLE %I BYPASSRLS', current_user) FROM found WHERE row_security_active(oid)
UNION ALL
SELECT 'run `listedge migrate up`; what it does not make, or has made before and was dropped since, restore from a backup: '
	|| string_agg(format('%I.%I', schema, name), ', ') FROM wanted
WHERE NOT EXISTS (SELECT FROM found f WHERE (f.schema, f.name) = (wanted.schema, wanted.name)) HAVING count(*) > 0
