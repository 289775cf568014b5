-- What of the publication $1 there is, of the tables as they are: of each
-- partition, where a table has some. What an update or a delete tells of the
-- row as it was is its replica identity. Rows of a table that inherits from one
-- of them are read as that one's and not told as such; those of a temporary one
-- are read by nobody else. The rows of an unlogged one are not in the WAL.
-- $2 are the tables, each with the column that identifies its list and, if they are
-- lists, those that decide about pages. A change of a list can only name its rows by the listed columns, and
-- where the workspace and the id name one row: by a unique index of the table.
WITH leaf AS (
    SELECT wanted.*, n.nspname, r.oid AS root, c.oid, c.relname, c.relreplident, c.relpersistence, coalesce(k.identity, '{}') AS identity
    FROM jsonb_to_recordset($2::jsonb) wanted (name text, col text, listed text[])
    LEFT JOIN pg_namespace s ON s.nspname = 'public' -- to_regclass needs a right to it
    LEFT JOIN pg_class r ON (r.relname, r.relnamespace) = (wanted.name, s.oid)
    LEFT JOIN LATERAL (SELECT relid::oid FROM pg_partition_tree(r.oid) WHERE isleaf UNION SELECT r.oid WHERE r.relkind <> 'p') l (oid) ON true
    LEFT JOIN pg_class c ON c.oid = l.oid
    LEFT JOIN LATERAL (SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid
        WHERE i.indrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
          AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END) k (identity) ON true
    LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE r.oid IS NULL OR c.oid IS NOT NULL), -- pg_partition_tree finds partitions that this statement's snapshot does not see yet
told AS (
    SELECT leaf.*, t.tablename IS NOT NULL AND to_jsonb(t) ->> 'rowfilter' IS NULL AS whole, to_jsonb(t) -> 'attnames' AS columns -- which are since Postgres 15
    FROM leaf LEFT JOIN pg_publication_tables t ON pubname = $1 AND (t.schemaname, t.tablename) = (nspname, relname)),
unique_key (root) AS (
    SELECT indrelid FROM pg_index WHERE indrelid IN (SELECT root FROM leaf)
    AND indisunique AND indisvalid AND indimmediate AND indpred IS NULL AND indexprs IS NULL
    AND NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = indrelid AND attnum = ANY ((indkey::int2[])[0:indnkeyatts - 1]) AND attname NOT IN ('workspace_id', 'id'))),
heir AS (
    SELECT c.oid::regclass::text AS name, leaf.oid::regclass::text AS parent
    FROM leaf JOIN pg_inherits ON inhparent = leaf.oid JOIN pg_class c ON c.oid = inhrelid AND c.relpersistence <> 't')
SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = $1),
    EXISTS (SELECT FROM pg_publication WHERE pubname = $1 AND pubinsert AND pubupdate AND pubdelete AND pubtruncate AND NOT pubviaroot),
    coalesce((SELECT string_agg(DISTINCT name, ', ') FROM told WHERE NOT whole OR NOT coalesce(columns @> to_jsonb(col), true)), ''),
    coalesce((SELECT string_agg(DISTINCT name, ', ') FROM leaf WHERE relreplident <> 'f' AND col <> ALL (identity)), ''),
    coalesce((SELECT string_agg(oid::regclass::text, ', ' ORDER BY oid) FROM leaf WHERE relpersistence <> 'p'), ''),
    coalesce((SELECT string_agg(format('ALTER TABLE %s SET LOGGED', oid::regclass), '; ' ORDER BY oid) FROM leaf WHERE relpersistence <> 'p'), ''),
    coalesce((SELECT string_agg(DISTINCT name, ', ') FROM heir), ''),
    coalesce((SELECT string_agg(format('ALTER TABLE %s NO INHERIT %s', name, parent), '; ' ORDER BY name, parent) FROM heir), ''),
    (SELECT array_agg(DISTINCT name) FROM told WHERE listed IS NOT NULL AND NOT coalesce(columns @> to_jsonb(listed), true)),
    (SELECT array_agg(DISTINCT name) FROM leaf WHERE listed IS NOT NULL AND (relreplident <> 'f' AND 'id' <> ALL (identity) OR root NOT IN (SELECT root FROM unique_key)))
