-- Commands that give tables what the schema has and they lack: columns $2 of the tables $1, of the types $3 and with the definitions $4, and
-- indexes $5, made by the statements $6. varchar is read like text. A domain is sent as the type below it.
SELECT command FROM (
	SELECT n, CASE WHEN a.attname IS NULL THEN format('ALTER TABLE public.%I ADD COLUMN %s', tab, def)
		ELSE format('ALTER TABLE public.%1$I ALTER COLUMN %2$I TYPE %3$s USING %2$I::%3$s', tab, col, typ) END AS command
	FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY w (tab, col, typ, def, n)
	JOIN pg_class c ON relnamespace = 'public'::regnamespace AND relname = tab
	LEFT JOIN pg_attribute a ON attrelid = c.oid AND attname = col AND attnum > 0 AND NOT attisdropped
	LEFT JOIN pg_type t ON t.oid = a.atttypid
	WHERE a.attname IS NULL OR coalesce(nullif(t.typbasetype, 0), a.atttypid) <> ALL (ARRAY[to_regtype(typ)::oid, CASE typ WHEN 'text' THEN 'varchar'::regtype::oid ELSE 0 END])
	UNION ALL
	SELECT 1000 + n, statement FROM unnest($5::text[], $6::text[]) WITH ORDINALITY w (name, statement, n)
	WHERE NOT EXISTS (SELECT FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relname = name)
) lacking ORDER BY n
