-- A command for each right that this user lacks on what nodes read, or of the rights $2 on the tables $1, and if row level security may hide their rows.
SELECT format('GRANT USAGE ON SCHEMA public TO %I', current_user) WHERE NOT has_schema_privilege('public', 'USAGE')
UNION ALL
SELECT format('GRANT %s ON public.%I TO %I', $2::text, relname, current_user) FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relname = ANY ($1::text[]) AND EXISTS (SELECT FROM unnest(string_to_array($2::text, ', ')) r WHERE NOT has_table_privilege(oid, r))
UNION ALL
SELECT format('GRANT EXECUTE ON FUNCTION public.%I(%s) TO %I', proname, pg_get_function_identity_arguments(oid), current_user) FROM pg_proc
WHERE pronamespace = 'public'::regnamespace AND proname IN ('fold', 'fold_letters', 'name_key', 'search_text', 'search_grams')
	AND NOT has_function_privilege(oid, 'EXECUTE')
UNION ALL
SELECT DISTINCT format('ALTER ROLE %I BYPASSRLS', current_user) FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relname = ANY ($1::text[]) AND row_security_active(oid)
UNION ALL
SELECT 'run `listedge migrate up`; what it has made before and was dropped since, restore from a backup' FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relname = ANY ($1::text[]) HAVING count(*) < cardinality($1::text[])
