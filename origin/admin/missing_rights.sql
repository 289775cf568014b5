-- A command for each right that this user lacks to read what nodes read, and for each of the tables $1 whose row level security may hide rows.
SELECT format('GRANT USAGE ON SCHEMA public TO %I', current_user) WHERE NOT has_schema_privilege('public', 'USAGE')
UNION ALL
SELECT format('GRANT SELECT ON public.%I TO %I', relname, current_user) FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relname = ANY ($1::text[]) AND NOT has_table_privilege(oid, 'SELECT')
UNION ALL
SELECT format('GRANT EXECUTE ON FUNCTION public.%I(%s) TO %I', proname, pg_get_function_identity_arguments(oid), current_user) FROM pg_proc
WHERE pronamespace = 'public'::regnamespace AND proname IN ('fold', 'fold_letters', 'name_key', 'search_text', 'search_grams')
	AND NOT has_function_privilege(oid, 'EXECUTE')
UNION ALL
SELECT DISTINCT format('ALTER ROLE %I BYPASSRLS', current_user) FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relname = ANY ($1::text[]) AND row_security_active(oid)
