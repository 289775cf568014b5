package origin

import (
	_ "embed"

	"listedge/origin/postgres"
)

// Statements of keys, workspaces and the doctor.

// schemaVersionSQL reads the table that goose keeps.
const schemaVersionSQL = `SELECT max(version_id) FROM public.goose_db_version WHERE is_applied`

// mendRightsSQL has a command for each right that this user lacks to read what
// nodes read, and for each table whose row level security may hide rows from it.
const mendRightsSQL = `
SELECT format('GRANT USAGE ON SCHEMA public TO %I', current_user) WHERE NOT has_schema_privilege('public', 'USAGE')
UNION ALL
SELECT format('GRANT SELECT ON public.%I TO %I', relname, current_user) FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relname IN ('items', 'contacts', 'api_keys', 'workspaces') AND NOT has_table_privilege(oid, 'SELECT')
UNION ALL
SELECT format('GRANT EXECUTE ON FUNCTION public.%I(%s) TO %I', proname, pg_get_function_identity_arguments(oid), current_user) FROM pg_proc
WHERE pronamespace = 'public'::regnamespace AND proname IN ('name_key', 'search_fold', 'search_text', 'search_grams') AND NOT has_function_privilege(oid, 'EXECUTE')
UNION ALL
SELECT DISTINCT format('ALTER ROLE %I BYPASSRLS', current_user) FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relname IN ('items', 'contacts', 'api_keys', 'workspaces') AND row_security_active(oid)`

// databaseIdentitySQL tells databases of servers apart, whatever leads to them:
// an old primary that lives on from the new one, too.
const databaseIdentitySQL = `
SELECT system_identifier || '/' || oid || '/' || extract(epoch FROM pg_postmaster_start_time()) || '/' || pg_is_in_recovery() FROM pg_control_system(), pg_database WHERE datname = current_database()`

// serverFactsSQL reads what checkServer judges, and whether the server is a standby.
const serverFactsSQL = `SELECT current_setting('server_version_num')::int, pg_encoding_to_char(encoding), pg_is_in_recovery() FROM pg_database WHERE datname = current_database()`

// publicationSQL makes the publication, or adds to it what it lacks. Column
// lists came with Postgres 15; without them whole rows are sent.
//
//go:embed publication.sql
var publicationSQL string

// publishedSQL is one text of what it has made; empty = nothing.
const publishedSQL = `
SELECT coalesce((SELECT concat_ws(' ', pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot,
	(SELECT string_agg(prrelid::text, ' ' ORDER BY prrelid) FROM pg_publication_rel WHERE prpubid = p.oid))
	FROM pg_publication p WHERE pubname = 'listedge'), '')`

// factsSQL reads facts, for a slot whose name begins with $1 and ends with $2.
const factsSQL = `
WITH me AS (SELECT * FROM pg_roles WHERE rolname = current_user),
slot AS (SELECT * FROM pg_replication_slots WHERE slot_name = $1 || (SELECT oid FROM pg_database WHERE datname = current_database()) || $2)
SELECT current_setting('server_version_num')::int AS version, current_setting('server_version') AS version_text,
	current_setting('wal_level') AS wal_level, pg_encoding_to_char(d.encoding) AS encoding,
	current_setting('synchronous_standby_names') AS standbys, current_setting('max_slot_wal_keep_size') AS keep_size,
	coalesce((SELECT wal_status FROM slot), '') AS status, pg_is_in_recovery() AS standby,
	me.rolsuper AS superuser, me.rolsuper OR me.rolreplication AS replication,
	coalesce((SELECT bool_and(pg_has_role(current_user, relowner, 'USAGE')) FROM pg_class WHERE oid IN (to_regclass('items'), to_regclass('contacts'), to_regclass('api_keys'), to_regclass('workspaces'))), false) AS owner,
	EXISTS (SELECT FROM slot WHERE active) AS active, coalesce((SELECT wal_status = 'lost' FROM slot), false) AS lost,
	EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_trgm') AS trigram, EXISTS (SELECT FROM pg_extension WHERE extname = 'btree_gin') AS gin,
	EXISTS (SELECT FROM pg_collation WHERE collname = 'und-x-icu') AS icu,
	EXISTS (SELECT FROM pg_collation WHERE collname IN ('und-x-icu', 'name_order') AND collversion <> pg_collation_actual_version(oid)) AS other_icu,
	EXISTS (SELECT FROM slot) AS slot,
	current_setting('max_replication_slots')::int AS slots, (SELECT count(*) FROM pg_replication_slots)::int AS slots_used,
	current_setting('max_wal_senders')::int AS senders, (SELECT count(*) FROM pg_stat_replication)::int AS senders_used,
	current_setting('max_connections')::int AS connections,
	(SELECT sum(numbackends) FROM pg_stat_database)::int AS used,
	coalesce((SELECT greatest(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, restart_lsn), 0) FROM slot), 0)::bigint AS retained
FROM pg_database d, me WHERE d.datname = current_database()`

// lockedSQL has a row for each table that statements wait for longer than an
// instant (waiting, and for how many seconds the first of them), or that
// somebody has kept from readers for over a second while nobody asked; with who
// holds it, as far as that is known (holder 0 = a prepared transaction). Indexes
// and partitions count as their table. It reads what is never locked: of the
// tables, no more than the name.
const lockedSQL = `
WITH RECURSIVE tables (oid, name) AS (
	SELECT to_regclass(n)::oid, n FROM unnest('{items,contacts,api_keys,workspaces}'::text[]) n
	UNION ALL SELECT inhrelid, name FROM tables JOIN pg_inherits ON inhparent = oid
),
relations AS (SELECT * FROM tables UNION ALL SELECT indexrelid, name FROM tables JOIN pg_index ON indrelid = oid),
locks AS (
	SELECT name, pid, granted, mode, waitstart FROM pg_locks l JOIN relations r ON r.oid = l.relation
	WHERE locktype = 'relation' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
),
waits AS (
	SELECT DISTINCT ON (name) name, pid, waitstart, count(*) OVER (PARTITION BY name)::int AS waiting
	FROM locks WHERE NOT granted AND waitstart < clock_timestamp() - interval '100 ms' ORDER BY name, waitstart
),
held AS (
	SELECT w.name, w.waiting, w.waitstart AS since, h.pid
	FROM waits w LEFT JOIN LATERAL (SELECT pid FROM unnest(pg_blocking_pids(w.pid)) pid ORDER BY cardinality(pg_blocking_pids(pid)) LIMIT 1) h ON true
	UNION ALL
	(SELECT DISTINCT ON (name) name, 0, xact_start, l.pid FROM locks l JOIN pg_stat_activity a USING (pid)
	WHERE granted AND mode = 'AccessExclusiveLock' AND xact_start < clock_timestamp() - interval '1 s' AND name NOT IN (SELECT name FROM waits))
)
SELECT name, waiting, coalesce(extract(epoch FROM clock_timestamp() - since), 0)::float8 AS seconds, pid AS holder, coalesce(state, '') AS state, coalesce(query, '') AS query
FROM held LEFT JOIN pg_stat_activity USING (pid) ORDER BY seconds DESC`

// replicaFactsSQL is what DiagnoseReplica wants to know of a server.
const replicaFactsSQL = `SELECT pg_is_in_recovery(), pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')`

// Keys and workspaces, as every node asks for them: a row of its own, before
// those of the keys, has in its first column which server it was, so that an
// answer without keys names its server, too …
const lookupKeysSQL = `
SELECT ` + postgres.ServerSQL + `, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
UNION ALL
SELECT NULL, k.key_hash, k.id, k.workspace_id, 'items:read' = ANY(k.scopes), 'contacts:read' = ANY(k.scopes), k.expires_at,
       coalesce(k.revoked_at <= now(), false), coalesce(w.suspended_at <= now(), false),
       coalesce(k.revoked_at > now(), false) OR coalesce(w.suspended_at > now(), false),
       k.rate_per_second, k.burst, w.rate_per_second, w.burst, k.xmin::text::int8, w.xmin::text::int8
FROM public.api_keys k JOIN public.workspaces w ON w.id = k.workspace_id
WHERE k.key_hash = ANY($1)`

// purgeSQL writes a message into the WAL, where somebody reads it.
const purgeSQL = `
SELECT pg_logical_emit_message(true, $2, $3) IS NOT NULL
	AND EXISTS (SELECT FROM pg_replication_slots s JOIN pg_database d ON d.datname = current_database() WHERE active AND slot_name ~ ('^' || $1 || d.oid || '(_|$)'))`

// … and as the commands change them.
const (
	// Those of a WorkspaceRow, and of a KeyRow.
	workspaceColumns = `id, name, suspended_at, rate_per_second, burst, created_at`
	keyColumns       = `id, workspace_id, name, key_prefix AS prefix, scopes, rate_per_second, burst, nullif(expires_at, 'infinity') AS expires_at, revoked_at, created_at`

	createWorkspaceSQL = `
INSERT INTO workspaces (name, rate_per_second, burst) VALUES ($1, $2, $3)
RETURNING ` + workspaceColumns

	listWorkspacesSQL = `
SELECT ` + workspaceColumns + ` FROM workspaces ORDER BY created_at, id`

	updateWorkspaceSQL = `
UPDATE workspaces SET rate_per_second = coalesce($2, rate_per_second), burst = coalesce($3, burst) WHERE id = $1
RETURNING ` + workspaceColumns

	suspendWorkspaceSQL = `
UPDATE workspaces SET suspended_at = coalesce(suspended_at, now()) WHERE id = $1
RETURNING ` + workspaceColumns

	resumeWorkspaceSQL = `
UPDATE workspaces SET suspended_at = NULL WHERE id = $1
RETURNING ` + workspaceColumns

	workspaceExistsSQL = `SELECT EXISTS (SELECT FROM workspaces WHERE id = $1)`

	createKeySQL = `
INSERT INTO api_keys (workspace_id, name, key_hash, key_prefix, scopes, rate_per_second, burst, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, now() + $8)
RETURNING ` + keyColumns

	listKeysSQL = `
SELECT ` + keyColumns + `
FROM api_keys WHERE workspace_id = $1 ORDER BY created_at, id`

	updateKeySQL = `
UPDATE api_keys SET rate_per_second = coalesce($2, rate_per_second), burst = coalesce($3, burst) WHERE id = $1
RETURNING ` + keyColumns

	revokeKeySQL = `
UPDATE api_keys SET revoked_at = coalesce(least(revoked_at, now()), now()) WHERE id = $1
RETURNING ` + keyColumns

	workingKeySQL = `
SELECT workspace_id FROM api_keys
WHERE key_hash = $1 AND coalesce(revoked_at > now(), true) AND coalesce(expires_at > now(), true)`
)
