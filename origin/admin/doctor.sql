-- What no node notices before it harms, a row each: its name, whether the doctor fails because of it (1), how it is if it is fine, what is
-- wrong (empty = nothing), and what to do. $1 and $2 begin and end the slot's name. $3 are the schemas of the tables of lists and keys, $4 their names, $5 the most
-- connections of a node, $6 how many nodes there are, or are at least.
WITH database AS (SELECT oid, datconnlimit FROM pg_database WHERE datname = current_database()),
slot AS (
	SELECT slot_name, temporary, coalesce(active, false) AS active, wal_status = 'lost' AS lost, keep, retained >= CASE WHEN keep < 0 THEN 512 * 1048576::bigint ELSE keep / 2 END AS much,
		'retains ' || pg_size_pretty(retained) || ' of WAL' || CASE WHEN keep < 0 THEN '' ELSE ', of ' || pg_size_pretty(keep) || ' that max_slot_wal_keep_size allows' END AS retains,
		EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1 || database.oid || $2 || '_new') AS making
	FROM (SELECT setting::bigint * 1048576 AS keep FROM pg_settings WHERE name = 'max_slot_wal_keep_size') setting
	CROSS JOIN database LEFT JOIN pg_replication_slots s ON slot_name = $1 || database.oid || $2
	CROSS JOIN LATERAL (SELECT coalesce(greatest(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, restart_lsn), 0), 0) AS retained) r
),
-- What bounds connections: how many there may be (NULL = no bound), how many there are, and how many of them are no node's.
-- Postgres spares superusers the last two bounds, and keeps connections for them.
bounds AS (
	SELECT subject, most, raise, count(pid)::int AS used, count(pid) FILTER (WHERE application_name NOT LIKE 'listedge%')::int AS others, greatest($6::int, 2) AS nodes -- one replaces another
	FROM database CROSS JOIN pg_roles r CROSS JOIN LATERAL (VALUES
		('max_connections', current_setting('max_connections')::int - CASE WHEN rolsuper THEN 0 ELSE current_setting('superuser_reserved_connections')::int END
			- CASE WHEN rolsuper OR pg_has_role((SELECT p.oid FROM pg_roles p WHERE p.rolname = 'pg_use_reserved_connections'), 'USAGE') THEN 0
				ELSE coalesce(current_setting('reserved_connections', true), '0')::int END, 'set max_connections = %s and restart Postgres'), -- since Postgres 16
		('role''s limit', CASE WHEN NOT rolsuper THEN nullif(rolconnlimit, -1) END, format('ALTER ROLE %I CONNECTION LIMIT %%s', rolname)),
		('database''s limit', CASE WHEN NOT rolsuper THEN nullif(datconnlimit, -1) END, format('ALTER DATABASE %I CONNECTION LIMIT %%s', current_database()))
	) bound (subject, most, raise)
	LEFT JOIN pg_stat_activity a ON a.datid IS NOT NULL AND a.usesysid IS NOT NULL
		AND CASE subject WHEN 'role''s limit' THEN a.usesysid = r.oid WHEN 'database''s limit' THEN a.datid = database.oid ELSE true END
	WHERE r.rolname = current_user GROUP BY subject, most, raise
),
-- Who has locked tables of lists or keys for over a second, or keeps a statement waiting that will lock them: readers queue behind it.
-- Process 0 is a prepared transaction. Only catalogs that are never locked are read.
lockers AS (
	SELECT format('%s locked by process %s (%s)', string_agg(DISTINCT relname, ' and ' ORDER BY relname), h.pid,
			coalesce(state || ': ' || left(regexp_replace(query, '\s+', ' ', 'g'), 100), 'of another user, or prepared')) AS text, h.pid
	FROM unnest($3::text[], $4::text[]) w (schema, name) JOIN pg_namespace s ON nspname = schema JOIN pg_class c ON relnamespace = s.oid AND relname = name
	JOIN pg_locks l ON c.oid = coalesce(pg_partition_root(l.relation), l.relation)
	CROSS JOIN LATERAL unnest(CASE WHEN granted THEN ARRAY[coalesce(l.pid, 0)] ELSE pg_blocking_pids(l.pid) END) h (pid) LEFT JOIN pg_stat_activity a ON a.pid = h.pid
	WHERE l.database = (SELECT oid FROM database) AND mode = 'AccessExclusiveLock' AND cardinality(pg_blocking_pids(h.pid)) = 0
		AND coalesce(xact_start < clock_timestamp() - interval '1 s', true)
	GROUP BY h.pid, state, query
)
SELECT subject, effect, fine, coalesce(why, ''), remedy FROM (
SELECT 'max_slot_wal_keep_size', CASE WHEN temporary THEN 0 WHEN slot_name IS NULL THEN 0 ELSE 1 END, current_setting('max_slot_wal_keep_size'),
	CASE WHEN keep >= 0 THEN NULL
		WHEN NOT temporary THEN 'not set: while no node follows, the persistent slot may fill the primary''s disk'
		ELSE 'not set, so the slot of --slot auto is temporary, and never keeps WAL for nobody: whenever another node begins to follow, all nodes read their pages and keys again' END,
	'set max_slot_wal_keep_size to what the disk can spare, and reload: then the slot of --slot auto is persistent, and nothing is read again' FROM slot
UNION ALL SELECT 'slot', 0, CASE WHEN temporary THEN 'temporary' ELSE 'persistent' END || ', followed, ' || retains,
	CASE WHEN slot_name IS NULL AND making THEN 'a node makes it, and waits for the end of write transactions that are open'
		WHEN slot_name IS NULL THEN 'there is none'
		WHEN lost THEN 'it retained more WAL than max_slot_wal_keep_size allows, or nobody followed it for long, so Postgres invalidated it'
		WHEN NOT active THEN 'no node follows it, and it ' || retains
		WHEN much THEN 'followed, and it ' || retains END,
	CASE WHEN slot_name IS NULL AND making THEN 'wait, or end them: SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY xact_start'
		WHEN slot_name IS NULL AND keep < 0 THEN 'start a node that may make it'
		WHEN slot_name IS NULL THEN 'start a node that may make it, or run `listedge migrate up`'
		WHEN lost THEN 'nothing: the next follower makes a new one; raise max_slot_wal_keep_size if it happens often'
		WHEN NOT active THEN 'start a node, or see why none follows; `listedge migrate drop-slot` if none will ever run again'
		ELSE 'see ListedgeRetainedWAL in the runbook' END FROM slot
UNION ALL SELECT 'locks', 0, 'nobody keeps readers of the tables waiting', string_agg(text, '; '),
	'let it finish, or ' || coalesce(string_agg(format('SELECT pg_terminate_backend(%s)', pid), '; '), '') FROM lockers
UNION ALL SELECT subject, 0, CASE WHEN most IS NULL THEN 'none' ELSE format('%s connections, %s used, %s not by nodes: enough for %s nodes', most, used, others, (most - others) / $5::int) END,
	CASE WHEN others + nodes * $5::int > most OR used >= most THEN format('%s connections, %s used, %s not by nodes; %s nodes use up to %s', most, used, others, nodes, nodes * $5::int) END,
	format(raise, others + nodes * $5::int) || ', or lower --database-connections' FROM bounds
) risk (subject, effect, fine, why, remedy)
