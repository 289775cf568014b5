-- What nodes follow: the publication of the tables' keys, and a message in the
-- log of changes for every change of their schema. Writers pay for neither:
-- the columns are in the write-ahead log anyway, the message is written by DDL.
-- What needs rights that a migration may lack (the publication, the event
-- triggers, the slot) is made after the migrations, every time: changes.go.

-- +goose Up
-- Only what may change our tables is told. A temporary table or an index is
-- not, and neither is another application's table.
-- +goose StatementBegin
CREATE FUNCTION listedge_on_ddl() RETURNS event_trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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

-- +goose Down
DROP EVENT TRIGGER IF EXISTS listedge_ddl;
DROP EVENT TRIGGER IF EXISTS listedge_drop;
DROP FUNCTION listedge_on_ddl;
DROP PUBLICATION IF EXISTS listedge;
