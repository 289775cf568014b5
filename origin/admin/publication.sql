DO $$
DECLARE
    required        regclass;
    publication_oid oid;
    did             text := '';
BEGIN
    PERFORM pg_advisory_xact_lock(7235116); -- several nodes may migrate at once
    SELECT oid INTO publication_oid FROM pg_publication WHERE pubname = 'listedge';
    IF publication_oid IS NULL THEN
        CREATE PUBLICATION listedge WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = false);
        did := 'made the publication';
        SELECT oid INTO publication_oid FROM pg_publication WHERE pubname = 'listedge';
    ELSIF NOT EXISTS (SELECT FROM pg_publication WHERE oid = publication_oid AND pubinsert AND pubupdate AND pubdelete AND pubtruncate AND NOT pubviaroot) THEN
        ALTER PUBLICATION listedge SET (publish = 'insert, update, delete, truncate', publish_via_partition_root = false);
        did := 'mended the publication';
    END IF;
    -- Whole tables: with a list of columns, Postgres refuses to change the type of a listed column or to drop it and, while the
    -- replica identity is the whole row, every update and delete: no key could be revoked.
    FOREACH required IN ARRAY current_setting('listedge.tables')::text[]::regclass[] LOOP
        CONTINUE WHEN (SELECT count(*) FILTER (WHERE to_jsonb(r) ->> 'prexcept' = 'true') = 0 -- EXCEPT is since Postgres 19
                AND (bool_or(prattrs IS NULL AND prqual IS NULL) IS TRUE OR EXISTS (SELECT FROM pg_publication WHERE oid = publication_oid AND puballtables))
            FROM pg_publication_rel r WHERE prpubid = publication_oid AND prrelid = required);
        IF EXISTS (SELECT FROM pg_publication_rel WHERE prpubid = publication_oid AND prrelid = required) THEN
            EXECUTE format('ALTER PUBLICATION listedge DROP TABLE %s', required); -- with its list or its filter, for this transaction alone
        END IF;
        EXECUTE format('ALTER PUBLICATION listedge ADD TABLE %s', required);
        did := coalesce(nullif(did, ''), 'mended the publication');
    END LOOP;
    PERFORM set_config('listedge.did', did, true);
END $$
