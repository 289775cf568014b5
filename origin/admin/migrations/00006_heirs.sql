-- Nodes are told when a table comes to inherit from one of ours, and when it
-- ceases to: its rows are read with ours. What the latter was about cannot be
-- looked up any more, but that there was an heir can, until ANALYZE; so, while
-- there is one or lately was, what is done to any table is told.

-- +goose Up
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION listedge_on_ddl() RETURNS event_trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    concerns boolean;
BEGIN
    IF tg_event = 'sql_drop' THEN -- what was dropped cannot be looked up any more
        concerns := EXISTS (SELECT FROM pg_event_trigger_dropped_objects() d
            WHERE NOT d.is_temporary AND d.object_type NOT IN ('index', 'sequence', 'default value', 'type', 'table constraint', 'toast table'));
    ELSE
        concerns := EXISTS (SELECT FROM pg_event_trigger_ddl_commands() d
            WHERE d.schema_name IS DISTINCT FROM 'pg_temp' AND (
                d.classid IS DISTINCT FROM 'pg_class'::regclass
                OR EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
                    WHERE p.pubname = 'listedge' AND r.prrelid = coalesce(pg_partition_root(d.objid::regclass), d.objid))
                OR EXISTS (SELECT FROM pg_class c WHERE c.oid = d.objid AND c.relkind <> 'i'
                    AND c.relname IN ('items', 'contacts', 'api_keys', 'workspaces'))
                OR d.object_type IN ('table', 'foreign table') AND EXISTS (SELECT FROM pg_class p WHERE p.relhassubclass AND p.relkind = 'r'
                    AND p.relname IN ('items', 'contacts', 'api_keys', 'workspaces'))));
    END IF;
    IF concerns THEN
        PERFORM pg_logical_emit_message(true, 'listedge', tg_tag);
    END IF;
END
$$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION listedge_on_ddl() RETURNS event_trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    concerns boolean;
BEGIN
    IF tg_event = 'sql_drop' THEN -- what was dropped cannot be looked up any more
        concerns := EXISTS (SELECT FROM pg_event_trigger_dropped_objects() d
            WHERE NOT d.is_temporary AND d.object_type NOT IN ('index', 'sequence', 'default value', 'type', 'table constraint', 'toast table'));
    ELSE
        concerns := EXISTS (SELECT FROM pg_event_trigger_ddl_commands() d
            WHERE d.schema_name IS DISTINCT FROM 'pg_temp' AND (
                d.classid IS DISTINCT FROM 'pg_class'::regclass
                OR EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
                    WHERE p.pubname = 'listedge' AND r.prrelid = coalesce(pg_partition_root(d.objid::regclass), d.objid))
                OR EXISTS (SELECT FROM pg_class c WHERE c.oid = d.objid AND c.relkind <> 'i'
                    AND c.relname IN ('items', 'contacts', 'api_keys', 'workspaces'))));
    END IF;
    IF concerns THEN
        PERFORM pg_logical_emit_message(true, 'listedge', tg_tag);
    END IF;
END
$$;
-- +goose StatementEnd
