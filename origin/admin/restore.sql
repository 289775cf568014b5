-- Commands that give tables what the schema has and they lack: columns $2 of the tables $1, of the types $3 and with the definitions $4, and
-- indexes $5, made by the statements $6. varchar is read like text. A domain is sent as the type below it. A column whose constraint is still
-- there was renamed. Nothing but a backup has values that have no default, and the functions $7, without which no other command may work.
WITH lost AS (
	SELECT string_agg(name, ', ' ORDER BY n) AS functions FROM unnest($7::text[]) WITH ORDINALITY w (name, n)
	WHERE NOT EXISTS (SELECT FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND proname = name)
)
SELECT format('restore from a backup the functions %s of the schema public and the indexes that use them, or stop all nodes and run `listedge migrate remove --yes`'
	' and `listedge migrate up`, which delete the audit log and the usage of keys', functions) AS command FROM lost WHERE functions IS NOT NULL
UNION ALL SELECT command FROM (
	SELECT n, CASE WHEN renamed IS NOT NULL THEN format('ALTER TABLE public.%I RENAME COLUMN %I TO %I', tab, renamed, col)
		WHEN a.attname IS NULL AND def ~ 'NOT NULL' AND def !~ 'DEFAULT' AND pg_relation_size(c.oid) > 0
			THEN format('restore the column %I of public.%I from a backup', col, tab)
		WHEN a.attname IS NULL THEN format('ALTER TABLE public.%I ADD COLUMN %s', tab, def)
		ELSE format('ALTER TABLE public.%1$I ALTER COLUMN %2$I TYPE %3$s USING %2$I::%3$s', tab, col, typ) END AS command
	FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY w (tab, col, typ, def, n)
	JOIN pg_class c ON relnamespace = 'public'::regnamespace AND relname = tab
	LEFT JOIN pg_attribute a ON attrelid = c.oid AND attname = col AND attnum > 0 AND NOT attisdropped
	LEFT JOIN pg_type t ON t.oid = a.atttypid
	LEFT JOIN LATERAL (SELECT min(r.attname) AS renamed FROM pg_constraint JOIN pg_attribute r ON r.attrelid = conrelid AND conkey = ARRAY[r.attnum]
		WHERE conrelid = c.oid AND a.attname IS NULL AND starts_with(conname, tab || '_' || col || '_') AND r.attname <> ALL ($2)) former ON true
	WHERE a.attname IS NULL OR coalesce(nullif(t.typbasetype, 0), a.atttypid) <> ALL (ARRAY[to_regtype(typ)::oid, CASE typ WHEN 'text' THEN 'varchar'::regtype::oid ELSE 0 END])
	UNION ALL
	SELECT 1000 + n, statement FROM unnest($5::text[], $6::text[]) WITH ORDINALITY w (name, statement, n)
	WHERE NOT EXISTS (SELECT FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relname = name)
	ORDER BY n
) lacking WHERE (SELECT functions FROM lost) IS NULL
