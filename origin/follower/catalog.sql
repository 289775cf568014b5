-- One row: the end of the WAL, a snapshot, and what the same snapshot sees of the catalog: its
-- version and, if that is not $1, the relations and the table that each belongs to. The catalog
-- is what pages are read from: the tables $3 in the schema public, whatever inherits from them or
-- is a partition of them at any depth, their columns, the functions of the pages' statements, and
-- the publication $2. The version is made of all xmin: it changes with every transaction that
-- writes one of these catalog rows, even if the content of the row stays the same. VACUUM,
-- ANALYZE and CREATE INDEX do not change it.
-- OFFSET 0 has a row looked up by its index, however many relations there are.
WITH RECURSIVE schema AS MATERIALIZED (
    SELECT oid, xmin FROM pg_namespace WHERE nspname = 'public'),
root AS MATERIALIZED (
    SELECT c.oid, relname::text, relhassubclass, c.xmin FROM schema JOIN pg_class c
    ON relnamespace = schema.oid AND relname = ANY ($3)),
tree (oid, name, parent, version) AS (
    SELECT oid, relname, relhassubclass, xmin::text FROM root
    UNION ALL SELECT c.oid, name, relhassubclass, tree.oid || ' ' || i.xmin::text || ' ' || c.xmin::text FROM tree
        CROSS JOIN LATERAL (SELECT inhrelid, xmin FROM pg_inherits WHERE inhparent = tree.oid AND parent OFFSET 0) i
        CROSS JOIN LATERAL (SELECT oid, relhassubclass, xmin FROM pg_class WHERE oid = inhrelid AND relpersistence <> 't' OFFSET 0) c),
catalog (version) AS MATERIALIZED (
    SELECT coalesce(sum(hashtextextended(version, oid::bigint)), 0)::text FROM (
        SELECT oid, version FROM tree
        UNION ALL SELECT oid, xmin::text FROM schema
        UNION ALL SELECT root.oid, attnum || ' ' || a.xmin::text FROM root JOIN pg_attribute a ON attrelid = root.oid AND attnum > 0
        UNION ALL SELECT f.oid, f.xmin::text FROM schema JOIN pg_proc f ON pronamespace = schema.oid
            AND proname IN ('fold', 'fold_letters', 'name_key', 'search_text', 'search_grams')
        UNION ALL SELECT oid, xmin::text FROM pg_publication WHERE pubname = $2
        UNION ALL SELECT objid, d.xmin::text FROM pg_publication p JOIN pg_depend d ON refclassid = 'pg_publication'::regclass AND refobjid = p.oid
            WHERE pubname = $2) row)
SELECT pg_current_wal_insert_lsn(), pg_current_snapshot()::text, version,
    CASE WHEN version <> $1 THEN (SELECT array_agg(oid ORDER BY oid, name) FROM tree) END,
    CASE WHEN version <> $1 THEN (SELECT array_agg(name ORDER BY oid, name) FROM tree) END
FROM catalog
