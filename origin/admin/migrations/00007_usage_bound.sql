-- usage_30 is sent as a JSON number, which most clients read as a double: above
-- 9007199254740991 (2^53 - 1) it would be another number for them, and at 1e400
-- Infinity. Rows above it are not changed here, as only their writer knows what
-- was meant: the migration names them and ends, before anything is done.
-- Nobody waits long: the table is locked for an instant, which is tried again
-- and again for a minute rather than waited for with all others behind, and rows
-- are checked while they are read and written.

-- +goose NO TRANSACTION
-- +goose Up
-- +goose StatementBegin
DO $$
DECLARE
    above bigint;
BEGIN
    SELECT count(*) INTO above FROM items WHERE usage_30 > 9007199254740991;
    IF above > 0 THEN
        RAISE EXCEPTION 'usage_30 of % items is above 9007199254740991: lower it (SELECT workspace_id, id, usage_30 FROM items WHERE usage_30 > 9007199254740991) and run migrate up again', above
            USING ERRCODE = 'check_violation';
    END IF;
    FOR attempt IN 1..60 LOOP
        EXIT WHEN EXISTS (SELECT FROM pg_constraint WHERE conrelid = 'items'::regclass AND conname = 'items_usage_30_bound');
        BEGIN
            SET LOCAL lock_timeout = '200ms';
            ALTER TABLE items ADD CONSTRAINT items_usage_30_bound CHECK (usage_30 <= 9007199254740991) NOT VALID;
        EXCEPTION WHEN lock_not_available THEN
            IF attempt = 60 THEN
                RAISE;
            END IF;
            PERFORM pg_sleep(0.8);
        END;
    END LOOP;
END
$$;
-- +goose StatementEnd

ALTER TABLE items VALIDATE CONSTRAINT items_usage_30_bound;

-- +goose Down
ALTER TABLE items DROP CONSTRAINT IF EXISTS items_usage_30_bound;
