-- Who did what with the administrative commands, and when. Commands write a row in
-- the transaction of their change; writers of the other tables pay nothing.

-- +goose Up
CREATE TABLE audit_log (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           timestamptz NOT NULL DEFAULT clock_timestamp(), -- now() is when an import began
    actor        text NOT NULL CHECK (actor <> '' AND char_length(actor) <= 128),
    role         text NOT NULL DEFAULT session_user,
    action       text NOT NULL CHECK (action <> '' AND char_length(action) <= 64),
    workspace_id uuid, -- no foreign key: what was deleted stays in the log
    key_id       uuid,
    details      jsonb NOT NULL DEFAULT '{}' CHECK (octet_length(details::text) <= 8192)
);
CREATE INDEX audit_log_by_at ON audit_log (at, id);
CREATE INDEX audit_log_by_workspace ON audit_log (workspace_id, at, id) WHERE workspace_id IS NOT NULL;

-- Rows stay as they were written. The triggers also fire for the owner, with
-- session_replication_role = replica, and for a logical subscription, which fires
-- those of rows only. Who owns the table can still drop it or its triggers: see
-- docs/SECURITY.md.
-- +goose StatementBegin
CREATE FUNCTION audit_log_is_append_only() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'audit_log is append-only: % is refused', tg_op USING ERRCODE = 'insufficient_privilege';
END
$$;
-- +goose StatementEnd
CREATE TRIGGER audit_log_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION audit_log_is_append_only();
CREATE TRIGGER audit_log_rows_append_only BEFORE UPDATE OR DELETE ON audit_log
    FOR EACH ROW EXECUTE FUNCTION audit_log_is_append_only();
ALTER TABLE audit_log ENABLE ALWAYS TRIGGER audit_log_append_only;
ALTER TABLE audit_log ENABLE ALWAYS TRIGGER audit_log_rows_append_only;

-- +goose Down
DROP TABLE audit_log;
DROP FUNCTION audit_log_is_append_only;
