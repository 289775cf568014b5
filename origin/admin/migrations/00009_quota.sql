-- A quota of requests for each calendar day or month (UTC), beside the rate. The
-- columns are empty in all rows, and the table is small: nothing is rewritten, and
-- nobody waits for the check.

-- +goose Up
-- Who waits for a lock has all others wait behind it, so the table is tried
-- again and again for a minute, each time for an instant.
-- +goose StatementBegin
DO $$
BEGIN
    FOR attempt IN 1..60 LOOP
        BEGIN
            SET LOCAL lock_timeout = '200ms';
            ALTER TABLE workspaces
                ADD COLUMN quota bigint,
                ADD COLUMN quota_period text,
                ADD CONSTRAINT workspaces_quota CHECK (
                    quota IS NULL AND quota_period IS NULL
                    OR quota IS NOT NULL AND quota_period IS NOT NULL AND quota BETWEEN 1 AND 4000000000 AND quota_period IN ('day', 'month')) NOT VALID;
            RETURN;
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

-- +goose Down
ALTER TABLE workspaces DROP COLUMN quota, DROP COLUMN quota_period;
