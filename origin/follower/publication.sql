-- What of the publication $1 there is, of the tables as they are: of each
-- partition, where a table has some. What an update or a delete tells of the
-- row as it was is its replica identity. Rows of a table that inherits from one
-- of them are read as that one's and not told as such; those of a temporary one
-- are read by nobody else. The rows of an unlogged one are not in the WAL.
WITH leaf AS (
    SELECT wanted.*, n.nspname, c.oid, c.relname, c.relreplident, c.relpersistence
    FROM (VALUES ('items', 'workspace_id', true), ('contacts', 'workspace_id', true), ('api_keys', 'workspace_id', false), ('workspaces', 'id', false)) wanted (name, col, moves)
    LEFT JOIN pg_namespace s ON s.nspname = 'public' -- to_regclass needs a right to it
    LEFT JOIN pg_class r ON (r.relname, r.relnamespace) = (wanted.name, s.oid)
    LEFT JOIN LATERAL (SELECT relid::oid FROM pg_partition_tree(r.oid) WHERE isleaf UNION SELECT r.oid WHERE r.relkind <> 'p') l (oid) ON true
    LEFT JOIN pg_class c ON c.oid = l.oid
    LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE r.oid IS NULL OR c.oid IS NOT NULL), -- pg_partition_tree finds partitions that this statement's snapshot does not see yet
heir AS (
    SELECT c.oid::regclass::text AS name, leaf.oid::regclass::text AS parent
    FROM leaf JOIN pg_inherits ON inhparent = leaf.oid JOIN pg_class c ON c.oid = inhrelid AND c.relpersistence <> 't')
SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = $1),
    EXISTS (SELECT FROM pg_publication WHERE pubname = $1 AND pubinsert AND pubupdate AND pubdelete AND pubtruncate AND NOT pubviaroot),
    coalesce((SELECT string_agg(DISTINCT name, ', ') FROM leaf
        LEFT JOIN pg_publication_tables t ON pubname = $1 AND (t.schemaname, t.tablename) = (nspname, relname)
        WHERE t.tablename IS NULL OR to_jsonb(t) ->> 'rowfilter' IS NOT NULL
           OR NOT coalesce(to_jsonb(t) -> 'attnames' @> to_jsonb(col), true)), ''),
    coalesce((SELECT string_agg(DISTINCT name, ', ') FROM leaf
        WHERE moves AND relreplident <> 'f' AND NOT EXISTS (
            SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attname = col
            WHERE i.indrelid = leaf.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
              AND CASE relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END)), ''),
    coalesce((SELECT string_agg(oid::regclass::text, ', ' ORDER BY oid) FROM leaf WHERE relpersistence <> 'p'), ''),
    coalesce((SELECT string_agg(format('ALTER TABLE %s SET LOGGED', oid::regclass), '; ' ORDER BY oid) FROM leaf WHERE relpersistence <> 'p'), ''),
    coalesce((SELECT string_agg(DISTINCT name, ', ') FROM heir), ''),
    coalesce((SELECT string_agg(format('ALTER TABLE %s NO INHERIT %s', name, parent), '; ' ORDER BY name, parent) FROM heir), '')
