-- What each key was used for, by the hour, and when it was last used. Nodes
-- write these tables, and no others. Nothing refers to the tables that other
-- systems write, so their writers pay nothing.

-- +goose Up
-- Kept for 35 days. fillfactor leaves room to update a row on its page: that
-- touches no index.
CREATE TABLE key_usage (
    workspace_id uuid NOT NULL,
    hour         timestamptz NOT NULL,
    key_id       uuid NOT NULL,
    requests     bigint NOT NULL,
    refused      bigint NOT NULL,
    not_modified bigint NOT NULL,
    bypassed     bigint NOT NULL,
    bytes        bigint NOT NULL,
    queries      bigint NOT NULL,
    PRIMARY KEY (workspace_id, hour, key_id)
) WITH (fillfactor = 70);
CREATE INDEX key_usage_by_hour ON key_usage (hour);

CREATE TABLE key_last_used (
    key_id       uuid PRIMARY KEY,
    last_used_at timestamptz NOT NULL
) WITH (fillfactor = 70);

-- The last batch that each run of a node has written: one that is sent again,
-- because its answer was lost, counts once.
CREATE TABLE usage_writers (
    run        uuid PRIMARY KEY,
    batch      bigint NOT NULL,
    written_at timestamptz NOT NULL
) WITH (fillfactor = 70);

-- Batch 0 says since when usage is counted.
INSERT INTO usage_writers VALUES ('00000000-0000-0000-0000-000000000000', 0, now());

-- +goose Down
DROP TABLE key_usage, key_last_used, usage_writers;
