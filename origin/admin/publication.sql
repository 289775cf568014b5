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
    -- A change of items or contacts names its rows by the columns that order and filter lists (origin/follower/version.go), so those two are
    -- published as a whole. With a list of columns, Postgres would refuse to change the type of a listed column or to drop it and,
    -- while the replica identity is the whole row, every update and delete.
    FOR wanted IN SELECT name, needed, columns, c.oid, relkind, relreplident FROM (VALUES
        ('items', '{workspace_id,id,active,created_at,name,sku,description,type,track_stock,stock_on_hand,reorder_point}'::name[], ''),
        ('contacts', '{workspace_id,id,active,created_at,name,email,phone,tin,is_customer,is_supplier}', ''),
        ('api_keys', '{id,workspace_id}', '(id, workspace_id)'), ('workspaces', '{id}', '(id)')) w (name, needed, columns) JOIN pg_class c ON c.oid = w.name::regclass
    LOOP
        IF EXISTS (SELECT FROM pg_publication_rel WHERE prpubid = there AND prrelid = wanted.oid) THEN
            CONTINUE WHEN NOT lists;
            CONTINUE WHEN EXISTS (SELECT FROM pg_publication_rel WHERE prpubid = there AND prrelid = wanted.oid AND (prattrs IS NULL
                OR wanted.relreplident <> 'f' AND wanted.needed <@ (SELECT array_agg(attname) FROM pg_attribute WHERE attrelid = prrelid AND attnum = ANY (prattrs))));
            EXECUTE format('ALTER PUBLICATION listedge DROP TABLE %I', wanted.name); -- with its list, for this transaction alone
        END IF;
        EXECUTE format('ALTER PUBLICATION listedge ADD TABLE %I %s', wanted.name,
            -- a partitioned table may have no list where its partitions are told apart
            CASE WHEN lists AND wanted.relkind <> 'p' AND wanted.relreplident <> 'f' THEN wanted.columns ELSE '' END);
    END LOOP;
END $$
