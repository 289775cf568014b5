-- What the database has for the lists whose tables are $1: JSON, each with schema, name, and the columns that its replica identity
-- must name. $2 is the publication. The columns are those of the Go struct listFacts, as JSON.
-- Nodes have the roles that may write their usage, and this user's.
WITH RECURSIVE wanted AS (
    SELECT c.oid, c.relkind, relnamespace, w.schema, w.name, w.columns
    FROM jsonb_to_recordset($1::jsonb) w (schema text, name text, columns text[])
    JOIN pg_namespace n ON n.nspname = w.schema JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name),
publication AS (SELECT * FROM pg_publication WHERE pubname = $2),
tree (root, oid, relkind) AS ( -- pg_partition_tree would wait for locks of partitions
    SELECT oid, oid, relkind FROM wanted
    UNION ALL SELECT root, c.oid, c.relkind FROM tree JOIN pg_inherits ON tree.relkind = 'p' AND inhparent = tree.oid AND NOT inhdetachpending
        JOIN pg_class c ON c.oid = inhrelid),
leaf AS (
    SELECT wanted.oid AS root, c.oid, c.relreplident, n.nspname AS schema, c.relname AS name, wanted.columns,
        EXISTS (SELECT FROM pg_inherits WHERE inhrelid = c.oid AND inhparent = wanted.oid) AS direct
    FROM wanted JOIN tree ON tree.root = wanted.oid AND tree.relkind <> 'p' JOIN pg_class c ON c.oid = tree.oid JOIN pg_namespace n ON n.oid = c.relnamespace),
key AS ( -- the unique indexes that could be the identity of a leaf, and are the identity or not
    SELECT i.indrelid AS leaf, c.relname AS name, i.indisprimary, leaf.columns <@ named.columns AS names,
        i.indisprimary AND leaf.relreplident = 'd' OR i.indisreplident AND leaf.relreplident = 'i' AS identity
    FROM leaf JOIN pg_index i ON i.indrelid = leaf.oid JOIN pg_class c ON c.oid = i.indexrelid
    CROSS JOIN LATERAL (SELECT array_agg(attname::text) AS columns, bool_and(attnotnull) AS not_null FROM pg_attribute
        WHERE attrelid = i.indrelid AND attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])) named
    WHERE i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL AND named.not_null),
role AS (
    SELECT rolname, pg_roles.oid FROM pg_roles WHERE rolname = current_user
    UNION SELECT rolname, grantee FROM pg_class CROSS JOIN LATERAL aclexplode(relacl) JOIN pg_roles ON pg_roles.oid = grantee
    WHERE pg_class.oid = to_regclass('public.listedge_usage_writers') AND privilege_type = 'INSERT' AND grantee <> relowner)
SELECT jsonb_build_object(
    'Functions', (SELECT count(DISTINCT proname) FROM pg_proc WHERE pronamespace = to_regnamespace('public') AND proname IN ('listedge_fold', 'listedge_name_key', 'listedge_search_grams')),
    'Publication', EXISTS (SELECT FROM publication),
    'Operations', EXISTS (SELECT FROM publication WHERE pubinsert AND pubupdate AND pubdelete AND pubtruncate AND NOT pubviaroot),
    'Tables', (SELECT jsonb_agg(jsonb_build_object('Schema', schema, 'Table', name, 'Partitioned', relkind = 'p',
        'Named', EXISTS (SELECT FROM pg_publication_rel WHERE prrelid = wanted.oid AND prpubid = (SELECT oid FROM publication)),
        'Whole', (EXISTS (SELECT FROM publication WHERE puballtables) OR EXISTS (
                SELECT FROM pg_publication_namespace WHERE pnnspid = relnamespace AND pnpubid = (SELECT oid FROM publication)) OR EXISTS (
                SELECT FROM pg_publication_rel WHERE prrelid = wanted.oid AND prpubid = (SELECT oid FROM publication) AND prqual IS NULL AND prattrs IS NULL))
            AND NOT EXISTS (SELECT FROM pg_publication_rel r WHERE prrelid = wanted.oid AND prpubid = (SELECT oid FROM publication)
                AND to_jsonb(r) ->> 'prexcept' = 'true'), -- EXCEPT is since Postgres 19
        'Readers', (SELECT jsonb_agg(rolname ORDER BY rolname) FROM role WHERE NOT has_table_privilege(role.oid, wanted.oid, 'SELECT')),
        'Visitors', (SELECT jsonb_agg(rolname ORDER BY rolname) FROM role WHERE NOT has_schema_privilege(role.oid, relnamespace, 'USAGE')),
        'Columns', columns, 'NotNull', (SELECT bool_and(attnotnull) FROM pg_attribute WHERE attrelid = wanted.oid AND attname = ANY (columns)),
        'Leaves', (SELECT jsonb_agg(jsonb_build_object('Schema', schema, 'Table', name, 'Direct', direct,
            'Identity', relreplident = 'f' OR EXISTS (SELECT FROM key WHERE key.leaf = leaf.oid AND identity AND names),
            'Primary', EXISTS (SELECT FROM key WHERE key.leaf = leaf.oid AND indisprimary AND names),
            'Unique', coalesce((SELECT min(key.name) FROM key WHERE key.leaf = leaf.oid AND names), '')) ORDER BY schema, name)
            FROM leaf WHERE root = wanted.oid)) ORDER BY schema, name) FROM wanted),
    'Indexes', (SELECT jsonb_agg(jsonb_build_object('Schema', nspname, 'Name', c.relname, 'Valid', indisvalid,
        'Attached', EXISTS (SELECT FROM pg_inherits WHERE inhrelid = c.oid),
        'Building', EXISTS (SELECT FROM pg_stat_progress_create_index p WHERE p.index_relid = c.oid)))
        FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_namespace n ON n.oid = relnamespace
        WHERE indrelid IN (SELECT oid FROM wanted UNION SELECT oid FROM leaf)))
