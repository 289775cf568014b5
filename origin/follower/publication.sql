-- One row: what the publication $1 has, and what is missing in it or in the tables. The columns
-- are those of the Go struct Publication, in its order. Partitions are checked one by one.
-- The replica identity is what an update or a delete says of the old row. Pages show the rows of a
-- table that inherits from one of the tables, and the publication lacks them. The rows of a
-- temporary table are read by nobody else; those of an unlogged or a foreign one are not in the WAL.
-- $2 are the tables, for each list of a table and for the keys: see requiredTable. A change can name the rows
-- of a list only where a unique index of the table says that tenant and key name one row.
-- Generated columns are published since Postgres 18: by a list of columns, or by publish_generated_columns.
-- The view pg_publication_tables would wait for every lock of a table since Postgres 16, and pg_partition_tree waits for those of partitions.
WITH RECURSIVE tree (root, oid, relkind) AS (
    SELECT DISTINCT c.oid, c.oid, c.relkind FROM jsonb_to_recordset($2::jsonb) required (schema text, name text)
    JOIN pg_namespace n ON n.nspname = schema JOIN pg_class c ON (c.relname, c.relnamespace) = (required.name, n.oid) -- to_regclass needs a right to it
    UNION ALL SELECT root, c.oid, c.relkind FROM tree JOIN pg_inherits ON tree.relkind = 'p' AND inhparent = tree.oid AND NOT inhdetachpending
        JOIN pg_class c ON c.oid = inhrelid),
leaf AS (
    SELECT required.*, format('%I.%I', schema, name) AS named, r.oid AS root, c.oid, c.relkind, c.relreplident, c.relpersistence,
        c.relnamespace::regnamespace || '.' || quote_ident(c.relname) AS leaf, coalesce(k.identity, '{}') AS identity, better.identity AS better
    FROM jsonb_to_recordset($2::jsonb) required (schema text, name text, list int, owner text, spot text[], columns text[])
    LEFT JOIN pg_namespace s ON s.nspname = schema
    LEFT JOIN pg_class r ON (r.relname, r.relnamespace) = (required.name, s.oid)
    LEFT JOIN tree ON tree.root = r.oid AND tree.relkind <> 'p'
    LEFT JOIN pg_class c ON c.oid = tree.oid
    LEFT JOIN LATERAL (SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid
        WHERE i.indrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
          AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END) k (identity) ON true
    LEFT JOIN LATERAL (SELECT CASE WHEN i.indisprimary THEN 'DEFAULT' ELSE format('USING INDEX %I', x.relname) END
        FROM pg_index i JOIN pg_class x ON x.oid = indexrelid JOIN pg_attribute a ON attrelid = indrelid AND attnum = ANY ((indkey::int2[])[0:indnkeyatts - 1])
        WHERE indrelid = c.oid AND indisunique AND indisvalid AND indimmediate AND indpred IS NULL AND indexprs IS NULL
        GROUP BY i.indisprimary, x.relname HAVING bool_and(attnotnull) AND array_agg(attname::text) @> spot
        ORDER BY indisprimary DESC, x.relname LIMIT 1) better (identity) ON true
    WHERE r.oid IS NULL OR c.oid IS NOT NULL), -- a partitioned table may have no partition
published AS (
    SELECT leaf.*, own.prqual IS NULL AND (puballtables OR member OR spaced) IS TRUE AND excepted IS NOT TRUE AND relkind NOT IN ('v', 'm') AS whole,
        (SELECT array_agg(attname::text) FROM pg_attribute WHERE attrelid = leaf.oid AND attnum > 0 AND NOT attisdropped
            AND (attgenerated = '' OR attgenerated = 's' AND (own.prattrs IS NOT NULL OR to_jsonb(p) ->> 'pubgencols' = 's'))
            AND coalesce(attnum = ANY (own.prattrs::int2[]), true)) AS has
    FROM leaf LEFT JOIN pg_publication p ON pubname = $1
    LEFT JOIN pg_publication_rel own ON (own.prpubid, own.prrelid) = (p.oid, leaf.oid)
    LEFT JOIN LATERAL (SELECT true AS member, bool_or(to_jsonb(r) ->> 'prexcept' = 'true') AS excepted -- EXCEPT is since Postgres 19
        FROM pg_publication_rel r WHERE prpubid = p.oid AND prrelid IN (SELECT leaf.oid UNION SELECT relid FROM pg_partition_ancestors(leaf.oid))
        HAVING count(*) > 0) r ON true
    LEFT JOIN LATERAL (SELECT true AS spaced FROM pg_publication_namespace JOIN pg_class c ON c.relnamespace = pnnspid
        WHERE pnpubid = p.oid AND c.oid IN (SELECT leaf.oid UNION SELECT relid FROM pg_partition_ancestors(leaf.oid)) LIMIT 1) n ON true),
unique_key AS (
    SELECT DISTINCT list FROM leaf WHERE EXISTS (SELECT FROM pg_index WHERE indrelid = root
        AND indisunique AND indisvalid AND indimmediate AND indpred IS NULL AND indexprs IS NULL
        AND NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = indrelid
            AND attnum = ANY ((indkey::int2[])[0:indnkeyatts - 1]) AND attname <> ALL (spot)))),
inheriting AS (
    SELECT relnamespace::regnamespace || '.' || quote_ident(relname) AS name, leaf.leaf AS parent
    FROM leaf JOIN pg_inherits ON inhparent = leaf.oid JOIN pg_class c ON c.oid = inhrelid AND c.relpersistence <> 't')
SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = $1) AS exists,
    EXISTS (SELECT FROM pg_publication WHERE pubname = $1 AND pubinsert AND pubupdate AND pubdelete AND pubtruncate AND NOT pubviaroot) AS all_operations,
    coalesce((SELECT string_agg(DISTINCT named, ', ') FROM published WHERE NOT whole OR NOT coalesce(has @> columns, false)), '') AS incomplete,
    coalesce((SELECT string_agg(DISTINCT leaf, ', ') FROM leaf WHERE relkind = 'r' AND relreplident <> 'f' AND owner <> ALL (identity)), '') AS no_old_row,
    coalesce((SELECT string_agg(DISTINCT format('ALTER TABLE %s REPLICA IDENTITY %s', leaf, coalesce(better, 'FULL')), '; ')
        FROM leaf WHERE relkind = 'r' AND relreplident <> 'f' AND owner <> ALL (identity)), '') AS set_identity,
    coalesce((SELECT string_agg(DISTINCT leaf, ', ') FROM leaf WHERE relpersistence <> 'p' OR relkind = 'f'), '') AS unlogged,
    coalesce((SELECT string_agg(DISTINCT CASE relkind
        WHEN 'f' THEN (SELECT format('ALTER TABLE %s.%I DETACH PARTITION %s', relnamespace::regnamespace, relname, leaf)
            FROM pg_inherits JOIN pg_class p ON p.oid = inhparent WHERE inhrelid = leaf.oid)
        ELSE format('ALTER TABLE %s SET LOGGED', leaf) END, '; ') FROM leaf WHERE relpersistence <> 'p' OR relkind = 'f'), '') AS set_logged,
    coalesce((SELECT string_agg(DISTINCT name, ', ') FROM inheriting), '') AS children,
    coalesce((SELECT string_agg(DISTINCT format('ALTER TABLE %s NO INHERIT %s', name, parent), '; ') FROM inheriting), '') AS no_inherit,
    (SELECT array_agg(DISTINCT list ORDER BY list) FROM leaf WHERE list IS NOT NULL AND oid IS NOT NULL
        AND (relreplident <> 'f' AND NOT identity @> spot OR NOT EXISTS (SELECT FROM unique_key u WHERE u.list = leaf.list))) AS ambiguous
