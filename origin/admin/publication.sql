DO $$
DECLARE
    wanted record;
    there  oid;
    lists  boolean := current_setting('server_version_num')::int >= 150000;
BEGIN
    PERFORM pg_advisory_xact_lock(7235116); -- several nodes may migrate at once
    SELECT oid INTO there FROM pg_publication WHERE pubname = 'listedge';
    IF there IS NULL THEN
        CREATE PUBLICATION listedge WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = false);
        SELECT oid INTO there FROM pg_publication WHERE pubname = 'listedge';
    ELSIF NOT EXISTS (SELECT FROM pg_publication WHERE oid = there AND pubinsert AND pubupdate AND pubdelete AND pubtruncate AND NOT pubviaroot) THEN
        ALTER PUBLICATION listedge SET (publish = 'insert, update, delete, truncate', publish_via_partition_root = false);
    END IF;
    IF EXISTS (SELECT FROM pg_publication WHERE oid = there AND puballtables) THEN
        RETURN;
    END IF;
    FOR wanted IN SELECT * FROM (VALUES ('items', '(workspace_id, id)'), ('contacts', '(workspace_id, id)'), ('api_keys', '(id, workspace_id)'), ('workspaces', '(id)')) w (name, columns) LOOP
        IF NOT EXISTS (SELECT FROM pg_publication_rel WHERE prpubid = there AND prrelid = wanted.name::regclass) THEN
            EXECUTE format('ALTER PUBLICATION listedge ADD TABLE %I %s', wanted.name,
                -- a partitioned table may have no list where its partitions are told apart
                CASE WHEN lists AND (SELECT relkind FROM pg_class WHERE oid = wanted.name::regclass) <> 'p' THEN wanted.columns ELSE '' END);
        END IF;
    END LOOP;
END $$
