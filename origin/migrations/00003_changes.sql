-- What nodes follow: the publication of the tables' keys, and a message in the
-- log of changes for every change of the schema. Writers pay for neither: the
-- columns are in the write-ahead log anyway, the message is written by DDL.

-- +goose Up
CREATE PUBLICATION listedge FOR TABLE items (workspace_id, id), contacts (workspace_id, id), api_keys (id, workspace_id), workspaces (id)
    WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = false);

-- +goose StatementBegin
CREATE FUNCTION listedge_on_ddl() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_logical_emit_message(true, 'listedge', tg_tag);
END
$$;
-- +goose StatementEnd

-- Only a superuser may make an event trigger. Without it, a rewrite of a table
-- by ALTER TABLE is not told.
-- +goose StatementBegin
DO $$
BEGIN
    CREATE EVENT TRIGGER listedge_ddl ON ddl_command_end EXECUTE FUNCTION listedge_on_ddl();
EXCEPTION WHEN insufficient_privilege THEN
    RAISE NOTICE 'no event trigger: only a superuser may make one';
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP EVENT TRIGGER IF EXISTS listedge_ddl;
DROP FUNCTION listedge_on_ddl;
DROP PUBLICATION listedge;
