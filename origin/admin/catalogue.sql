-- What list.Catalogue has of the relations whose schemas are $1 and names $2, as JSON of its fields. The type of a
-- column is that which its domain is made of. Null is forbidden by the column, its constraint being valid, or by a domain.
WITH RECURSIVE relation AS (
    SELECT c.oid, n.nspname::text AS schema, c.relname::text AS name, c.relkind, c.relpersistence
    FROM unnest($1::text[], $2::text[]) wanted (schema, name)
    JOIN pg_namespace n ON n.nspname = wanted.schema JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name),
tree (root, oid) AS ( -- pg_partition_tree would wait for locks of partitions
    SELECT oid, oid FROM relation WHERE relkind = 'p'
    UNION ALL SELECT root, inhrelid FROM tree JOIN pg_inherits ON inhparent = tree.oid)
SELECT coalesce(jsonb_agg(jsonb_build_object(
    'Name', jsonb_build_object('Schema', schema, 'Table', name), 'Kind', relkind, 'Persistence', relpersistence,
    'Parent', coalesce((SELECT format('%I.%I', n.nspname, p.relname) FROM pg_inherits JOIN pg_class p ON p.oid = inhparent
        JOIN pg_namespace n ON n.oid = p.relnamespace WHERE inhrelid = relation.oid LIMIT 1), ''),
    'PartitionBy', (SELECT jsonb_agg(DISTINCT attname) FROM tree JOIN pg_partitioned_table p ON root = relation.oid AND p.partrelid = tree.oid
        JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = ANY (p.partattrs::int2[])),
    'References', (SELECT jsonb_object_agg(attname, jsonb_build_object('Schema', n.nspname, 'Table', t.relname)) FROM pg_constraint
        JOIN pg_attribute a ON a.attrelid = conrelid AND conkey = ARRAY[attnum] JOIN pg_class t ON t.oid = confrelid JOIN pg_namespace n ON n.oid = t.relnamespace
        WHERE conrelid = relation.oid AND contype = 'f'),
    'Unique', (SELECT jsonb_agg((SELECT jsonb_agg(attname ORDER BY array_position(indkey::int2[], attnum)) FROM pg_attribute
            WHERE attrelid = indrelid AND attnum = ANY ((indkey::int2[])[0:indnkeyatts - 1])) ORDER BY indexrelid)
        FROM pg_index WHERE indrelid = relation.oid AND indisunique AND indisvalid AND indimmediate AND indpred IS NULL AND indexprs IS NULL),
    'Columns', (SELECT jsonb_agg(jsonb_build_object('Name', attname, 'Generated', attgenerated <> '',
            'NotNull', made.not_null OR attnotnull AND NOT EXISTS (
                SELECT FROM pg_constraint WHERE conrelid = attrelid AND contype = 'n' AND conkey = ARRAY[attnum] AND NOT convalidated),
            'Type', jsonb_build_object('OID', t.oid::bigint, 'Base', t.typname, 'Mod', made.mod,
                'Name', CASE n.nspname WHEN 'pg_catalog' THEN format_type(t.oid, -1) ELSE format('%I.%I', n.nspname, t.typname) END,
                'Labels', (SELECT jsonb_agg(enumlabel ORDER BY enumsortorder) FROM pg_enum WHERE enumtypid = t.oid))) ORDER BY attnum)
        FROM pg_attribute
        CROSS JOIN LATERAL (WITH RECURSIVE made (oid, mod, not_null) AS (
                SELECT atttypid, atttypmod, false
                UNION ALL SELECT typbasetype, typtypmod, not_null OR typnotnull FROM made JOIN pg_type ON pg_type.oid = made.oid AND typtype = 'd')
            SELECT made.* FROM made JOIN pg_type ON pg_type.oid = made.oid AND typtype <> 'd') made
        JOIN pg_type t ON t.oid = made.oid JOIN pg_namespace n ON n.oid = t.typnamespace
        WHERE attrelid = relation.oid AND attnum > 0 AND NOT attisdropped))), '[]')
FROM relation
