-- What has a name in the schema public that migrations need and is not theirs, for people. Tables $1 may be there, since other systems write
-- them, with all columns $2 of types $3, row by row; what has the names $4 and the functions $5 may not. Each table has a type of its name.
-- If migrations were applied: none, or with $6 those of $1. One snapshot sees that and the names.
WITH own (name) AS (SELECT unnest($4::text[] || '{listedge_audit_log, listedge_audit_log_by_at, listedge_audit_log_by_workspace, listedge_key_forms,
    listedge_key_last_used, listedge_key_usage, listedge_key_usage_by_hour, listedge_usage_writers}')),
relation AS (SELECT oid, relname::text AS name, relkind IN ('r', 'p') AS is_table FROM pg_class WHERE relnamespace = 'public'::regnamespace),
columns AS (SELECT attrelid, attname, coalesce(nullif(typbasetype, 0), t.oid) AS type FROM pg_attribute JOIN pg_type t ON t.oid = atttypid WHERE attnum > 0),
version AS (SELECT relation.oid, EXISTS (SELECT FROM columns WHERE attrelid = relation.oid AND attname = 'version_id') AS ours
    FROM relation WHERE name = 'listedge_schema_version'),
found AS (
    SELECT min(n) AS n, true AS contract, CASE WHEN is_table THEN 'the table ' || tab || ', which lacks ' || string_agg(col || ' ' || typ, ', ' ORDER BY n)
        ELSE 'the relation ' || tab || ', which is no table' END AS what
    FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY w (tab, col, typ, n) JOIN relation ON name = tab
    LEFT JOIN columns ON attrelid = relation.oid AND attname = col
    WHERE type IS NULL OR type <> to_regtype(typ) AND NOT (typ = 'text' AND type = 'varchar'::regtype) OR NOT is_table GROUP BY tab, is_table
    UNION ALL SELECT 1000, false, 'the relation ' || name FROM relation JOIN own USING (name)
    UNION ALL SELECT 1001, false, 'the relation listedge_schema_version' FROM version WHERE NOT ours
    UNION ALL SELECT 1002, false, 'the function ' || oid::regprocedure FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND proname = ANY ($5)
    UNION ALL SELECT 1003, false, 'the type ' || typname FROM pg_type WHERE typnamespace = 'public'::regnamespace AND typrelid = 0
        AND (typname = ANY ($1) OR typname IN (SELECT name FROM own)))
SELECT what FROM found WHERE contract AND $6 OR NOT EXISTS (SELECT FROM version WHERE ours) ORDER BY n, what
