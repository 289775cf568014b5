-- One row: the end of the WAL, a snapshot, and what the same snapshot sees of the catalog: its
-- version and, if that is not $1, the relations and, by its number, the table that each belongs to; and the
-- domains and the types that they are made of. The catalog is what pages are read from: the tables $4 in the schemas $3, whatever inherits from them or is a
-- partition of them at any depth (but for one that is being detached), their columns and unique indexes, the labels of the enums $5, the functions of the pages'
-- statements, and the publication $2. The version is made of all xmin: it changes with every transaction
-- that writes one of these catalog rows, even if the content of the row stays the same. VACUUM, ANALYZE and
-- CREATE INDEX do not change it. A new label of an enum does, and need not.
-- OFFSET 0 has a row looked up by its index, however many relations there are.
WITH RECURSIVE wanted AS MATERIALIZED (
    SELECT schema, name, number::int FROM unnest($3::text[], $4::text[]) WITH ORDINALITY t (schema, name, number)),
schema AS MATERIALIZED (
    SELECT oid, nspname::text AS name, xmin FROM pg_namespace WHERE nspname = ANY ($3) OR nspname = 'public'),
root AS MATERIALIZED (
    SELECT c.oid, number, relhassubclass, c.xmin FROM wanted JOIN schema ON schema.name = wanted.schema
    CROSS JOIN LATERAL (SELECT oid, relhassubclass, xmin FROM pg_class WHERE (relname, relnamespace) = (wanted.name, schema.oid) OFFSET 0) c),
tree (oid, number, parent, version) AS (
    SELECT oid, number, relhassubclass, xmin::text FROM root
    UNION ALL SELECT c.oid, number, relhassubclass, tree.oid || ' ' || i.xmin::text || ' ' || c.xmin::text FROM tree
        CROSS JOIN LATERAL (SELECT inhrelid, xmin FROM pg_inherits WHERE inhparent = tree.oid AND parent AND NOT inhdetachpending OFFSET 0) i
        CROSS JOIN LATERAL (SELECT oid, relhassubclass, xmin FROM pg_class WHERE oid = inhrelid AND relpersistence <> 't' OFFSET 0) c),
catalog (version) AS MATERIALIZED (
    SELECT coalesce(sum(hashtextextended(version, oid::bigint)), 0)::text FROM (
        SELECT oid, version FROM tree
        UNION ALL SELECT oid, xmin::text FROM schema
        UNION ALL SELECT root.oid, attnum || ' ' || a.xmin::text FROM root JOIN pg_attribute a ON attrelid = root.oid AND attnum > 0
        UNION ALL SELECT indexrelid, indisvalid || ' ' || indimmediate FROM root JOIN pg_index ON indrelid = root.oid AND indisunique
        UNION ALL SELECT oid, xmin::text FROM pg_enum WHERE enumtypid = ANY ($5)
        UNION ALL SELECT f.oid, f.xmin::text FROM schema JOIN pg_proc f ON pronamespace = schema.oid
            AND proname IN ('listedge_fold', 'listedge_fold_letters', 'listedge_name_key', 'listedge_search_grams') AND schema.name = 'public'
        UNION ALL SELECT oid, xmin::text FROM pg_publication WHERE pubname = $2
        UNION ALL SELECT objid, d.xmin::text FROM pg_publication p JOIN pg_depend d ON refclassid = 'pg_publication'::regclass AND refobjid = p.oid
            WHERE pubname = $2) row),
base (domain, type) AS (
    SELECT oid, typbasetype FROM pg_type WHERE typtype = 'd'
    UNION ALL SELECT domain, typbasetype FROM base JOIN pg_type ON oid = type AND typtype = 'd')
SELECT pg_current_wal_insert_lsn(), pg_current_snapshot()::text, version,
    CASE WHEN version <> $1 THEN (SELECT array_agg(oid ORDER BY oid, number) FROM tree) END,
    CASE WHEN version <> $1 THEN (SELECT array_agg(number ORDER BY oid, number) FROM tree) END,
    CASE WHEN version <> $1 THEN (SELECT array_agg(domain ORDER BY domain, type) FROM base JOIN pg_type ON oid = type AND typtype <> 'd') END,
    CASE WHEN version <> $1 THEN (SELECT array_agg(type ORDER BY domain, type) FROM base JOIN pg_type ON oid = type AND typtype <> 'd') END
FROM catalog
