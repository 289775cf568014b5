-- One row: what the publication $1 has, and what is missing in it or in the tables. The columns
-- are those of the Go struct Publication, in its order. Partitions are checked one by one.
-- The replica identity is what an update or a delete says of the old row. Pages show the rows of a
-- table that inherits from one of the tables, and the publication lacks them. The rows of a
-- temporary table are read by nobody else; those of an unlogged or a foreign one are not in the WAL.
-- $2 are the tables, each with the column that identifies its list, the columns that a change is
-- read from, and whether it is a list. A change can name its rows only where a unique index of the
-- table says that the workspace and the id name one row.
-- The view pg_publication_tables would wait for every lock of a table since Postgres 16.
WITH leaf AS (
    SELECT required.*, r.oid AS root, c.oid, c.relkind, c.relreplident, c.relpersistence, coalesce(k.identity, '{}') AS identity
    FROM jsonb_to_recordset($2::jsonb) required (name text, col text, required text[], list bool)
    LEFT JOIN pg_namespace s ON s.nspname = 'public' -- to_regclass needs a right to it
    LEFT JOIN pg_class r ON (r.relname, r.relnamespace) = (required.name, s.oid)
    LEFT JOIN LATERAL (SELECT relid::oid FROM pg_partition_tree(r.oid) WHERE isleaf UNION SELECT r.oid WHERE r.relkind <> 'p') l (oid) ON true
    LEFT JOIN pg_class c ON c.oid = l.oid
    LEFT JOIN LATERAL (SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid
        WHERE i.indrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
          AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END) k (identity) ON true
    WHERE r.oid IS NULL OR c.oid IS NOT NULL), -- pg_partition_tree finds partitions that this statement's snapshot does not see yet
published AS (
    SELECT leaf.*, own.prqual IS NULL AND (puballtables OR named) IS TRUE AND excepted IS NOT TRUE AS whole,
        (SELECT jsonb_agg(attname) FROM pg_attribute WHERE attrelid = leaf.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
            AND coalesce(attnum = ANY (own.prattrs::int2[]), true)) AS columns
    FROM leaf LEFT JOIN pg_publication p ON pubname = $1
    LEFT JOIN pg_publication_rel own ON (own.prpubid, own.prrelid) = (p.oid, leaf.oid)
    LEFT JOIN LATERAL (SELECT true AS named, bool_or(to_jsonb(r) ->> 'prexcept' = 'true') AS excepted -- EXCEPT is since Postgres 19
        FROM pg_publication_rel r WHERE prpubid = p.oid AND prrelid IN (SELECT leaf.oid UNION SELECT relid FROM pg_partition_ancestors(leaf.oid))
        HAVING count(*) > 0) r ON true),
unique_key (root) AS (
    SELECT indrelid FROM pg_index WHERE indrelid IN (SELECT root FROM leaf)
    AND indisunique AND indisvalid AND indimmediate AND indpred IS NULL AND indexprs IS NULL
    AND NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = indrelid
        AND attnum = ANY ((indkey::int2[])[0:indnkeyatts - 1]) AND attname NOT IN ('workspace_id', 'id'))),
inheriting AS (
    SELECT c.oid::regclass::text AS name, leaf.oid::regclass::text AS parent
    FROM leaf JOIN pg_inherits ON inhparent = leaf.oid JOIN pg_class c ON c.oid = inhrelid AND c.relpersistence <> 't')
SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = $1) AS exists,
    EXISTS (SELECT FROM pg_publication WHERE pubname = $1 AND pubinsert AND pubupdate AND pubdelete AND pubtruncate AND NOT pubviaroot) AS all_operations,
    coalesce((SELECT string_agg(DISTINCT name, ', ') FROM published WHERE NOT whole OR NOT coalesce(columns @> to_jsonb(required), true)), '') AS incomplete,
    coalesce((SELECT string_agg(DISTINCT name, ', ') FROM leaf WHERE relkind = 'r' AND relreplident <> 'f' AND col <> ALL (identity)), '') AS no_old_row,
    coalesce((SELECT string_agg(oid::regclass::text, ', ' ORDER BY oid) FROM leaf WHERE relpersistence <> 'p' OR relkind = 'f'), '') AS unlogged,
    coalesce((SELECT string_agg(CASE relkind WHEN 'f' THEN format('ALTER TABLE %s DETACH PARTITION %s', (SELECT inhparent::regclass FROM pg_inherits WHERE inhrelid = oid), oid::regclass)
        ELSE format('ALTER TABLE %s SET LOGGED', oid::regclass) END, '; ' ORDER BY oid) FROM leaf WHERE relpersistence <> 'p' OR relkind = 'f'), '') AS set_logged,
    coalesce((SELECT string_agg(DISTINCT name, ', ') FROM inheriting), '') AS children,
    coalesce((SELECT string_agg(format('ALTER TABLE %s NO INHERIT %s', name, parent), '; ' ORDER BY name, parent) FROM inheriting), '') AS no_inherit,
    (SELECT array_agg(DISTINCT name) FROM leaf WHERE list
        AND (relreplident <> 'f' AND 'id' <> ALL (identity) OR root NOT IN (SELECT root FROM unique_key))) AS ambiguous_rows
