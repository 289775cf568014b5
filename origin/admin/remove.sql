-- Removes what `listedge migrate up` and nodes have made. Kept are roles, and the tables that other
-- systems write, with their rows and constraints. Nodes have to be stopped: a slot that is in use is not dropped.
SET LOCAL lock_timeout = '5s';
SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
    WHERE database = current_database() AND slot_name ~ ('^listedge_' || (SELECT oid FROM pg_database WHERE datname = current_database()) || '(_|$)');
DROP PUBLICATION IF EXISTS listedge;
DROP TABLE IF EXISTS public.listedge_schema_version;
