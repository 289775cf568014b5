-- The doctor's checks of the primary, a row each: whether something is bad, how bad, what is fine or wrong, and what to do.
-- $1 and $2 begin and end the slot's name. $3 are the tables of lists and keys, $4 the most connections of one node.
-- $5: pages are read by another URL than this one, which changes are followed by. $6: how many nodes there are, or are at least.
WITH RECURSIVE
database AS (SELECT oid, pg_encoding_to_char(encoding) AS encoding, datconnlimit FROM pg_database WHERE datname = current_database()),
slot AS ( -- reasons of invalidation are since Postgres 16, idle_replication_slot_timeout since 18
	SELECT coalesce(active, false) AS active, wal_status = 'lost' AS lost, to_jsonb(s) ->> 'invalidation_reason' = 'idle_timeout' AS idle, slot_name,
		greatest(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, restart_lsn), 0) AS retained
	FROM database LEFT JOIN pg_replication_slots s ON slot_name = $1 || database.oid || $2
),
settings AS (
	SELECT current_setting('max_replication_slots')::int AS slots, (SELECT count(*) FROM pg_replication_slots) AS slots_used,
		current_setting('max_wal_senders')::int AS senders, (SELECT count(*) FROM pg_stat_replication) AS senders_used,
		(SELECT setting::bigint * 1048576 FROM pg_settings WHERE name = 'max_slot_wal_keep_size') AS keep,
		nullif(current_setting('idle_replication_slot_timeout', true), '0') AS idle_timeout
),
-- What bounds connections: how many there may be (NULL = no bound), how many there are, and how many of them are no node's.
-- Postgres spares superusers the last two bounds, and keeps connections for them.
bounds AS (
	SELECT subject, most, raise, count(pid)::int AS used, count(pid) FILTER (WHERE application_name NOT LIKE 'listedge%')::int AS others
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
-- The oldest transaction that has written something: slots retain the WAL from its begin on. Whose sessions this user may not see have no age.
writer AS (
	SELECT xact_start AS since, format('process %s of user %s in database %s, open for %s', pid, usename, datname,
		coalesce(date_trunc('second', clock_timestamp() - xact_start)::text, 'an unknown time')) AS text
	FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
	UNION ALL SELECT prepared, format('the prepared transaction %L of user %s in database %s, open for %s', gid, owner, database,
		date_trunc('second', clock_timestamp() - prepared)) FROM pg_prepared_xacts
	ORDER BY since LIMIT 1
),
-- Commands that let this user write the usage of keys.
unwritable AS (
	SELECT 'run `listedge migrate up`; what it has made before and was dropped since, restore from a backup' AS command WHERE NOT EXISTS (SELECT FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relname = 'usage_writers')
	UNION ALL SELECT format('GRANT SELECT, INSERT, UPDATE, DELETE ON public.%I TO %I', relname, current_user) FROM pg_class
	WHERE relnamespace = 'public'::regnamespace AND relname IN ('key_usage', 'key_last_used', 'usage_writers')
		AND NOT (has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT') AND has_table_privilege(oid, 'UPDATE')
			AND has_table_privilege(oid, 'DELETE'))
	UNION ALL SELECT DISTINCT format('ALTER ROLE %I BYPASSRLS', current_user) FROM pg_class
	WHERE relnamespace = 'public'::regnamespace AND relname IN ('key_usage', 'key_last_used', 'usage_writers') AND row_security_active(oid)
),
-- The sessions that lock tables of lists or keys, with what they lock and how to end them: statements have waited for the lock for
-- over 100 ms, or it has kept readers away for over a second. Of a queue it is the first. Process 0 is a prepared transaction.
-- Indexes and partitions count as their table. Only catalogs that are never locked are read.
tables (oid, name) AS (
	SELECT oid, relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relname = ANY ($3::text[])
	UNION ALL SELECT inhrelid, name FROM tables JOIN pg_inherits ON inhparent = oid
),
relations AS (SELECT * FROM tables UNION ALL SELECT indexrelid, name FROM tables JOIN pg_index ON indrelid = oid),
locks AS (
	SELECT name, pid, granted, mode, waitstart FROM pg_locks l JOIN relations r ON r.oid = l.relation
	WHERE locktype = 'relation' AND database = (SELECT oid FROM database)
),
holders AS (
	SELECT name, w.pid AS waits, waitstart AS since, h.pid FROM locks w, LATERAL
		(SELECT pid FROM unnest(pg_blocking_pids(w.pid)) pid ORDER BY cardinality(pg_blocking_pids(pid)) LIMIT 1) h
	WHERE NOT granted AND waitstart < clock_timestamp() - interval '100 ms'
	UNION ALL SELECT name, NULL, xact_start, l.pid FROM locks l JOIN pg_stat_activity USING (pid)
	WHERE granted AND mode = 'AccessExclusiveLock' AND xact_start < clock_timestamp() - interval '1 s'
),
locked AS (
	SELECT format('%s locked by %s; statements that wait: %s, since %s', string_agg(DISTINCT name, ' and ' ORDER BY name),
		CASE pid WHEN 0 THEN 'a prepared transaction' ELSE format('process %s (%s: %s)', pid, coalesce(max(state), 'of another user'),
			left(regexp_replace(max(query), '\s+', ' ', 'g'), 100)) END, count(DISTINCT waits), date_trunc('second', min(since))) AS text,
		CASE pid WHEN 0 THEN 'COMMIT PREPARED or ROLLBACK PREPARED each transaction in pg_prepared_xacts'
			ELSE format('SELECT pg_terminate_backend(%s)', pid) END AS command
	FROM holders LEFT JOIN pg_stat_activity USING (pid) GROUP BY pid ORDER BY pid
)
SELECT subject, CASE WHEN bad THEN level ELSE 'ok' END, CASE WHEN bad THEN broken ELSE fine END, CASE WHEN bad THEN remedy ELSE '' END
FROM settings, slot, LATERAL (SELECT '; pages live for --cache-ttl' AS by_age, -- what it means that changes cannot be followed
	'retains ' || pg_size_pretty(coalesce(retained, 0)) || ' of WAL' ||
		CASE WHEN keep < 0 THEN '' ELSE ', of ' || pg_size_pretty(keep) || ' that max_slot_wal_keep_size allows' END AS retains,
	512 * 1048576::bigint AS most, -- as much retained WAL as ListedgeRetainedWAL fires for
	(SELECT text FROM writer) AS writer) x,
LATERAL (VALUES
	('version', 'ok', false, current_setting('server_version') || ', ' || (SELECT encoding FROM database), '', ''),
	('primary', CASE WHEN $5::bool THEN 'warn' ELSE 'fail' END, pg_is_in_recovery(), 'this is the primary',
		'this is a standby: ' || CASE WHEN $5::bool THEN 'changes cannot be followed here' || by_age ELSE 'nodes take neither pages nor keys from it' END,
		CASE WHEN $5::bool THEN 'name the primary in --replication-url' ELSE 'name the primary in --database-url, and standbys in --replica-url' END),
	('wal_level', 'warn', WAL_LEVEL <> 'logical', coalesce(current_setting('effective_wal_level', true) || ' in force', 'logical'), current_setting('wal_level') || ': changes cannot be followed' || by_age,
		'set wal_level = logical and restart Postgres'),
	('max_replication_slots', 'warn', slot_name IS NULL AND slots_used + 2 > slots, format('%s of %s used', slots_used, slots),
		format('%s of %s used: following changes takes one, and two while it is made', slots_used, slots) || by_age,
		'raise it and restart Postgres, or drop a slot that nobody needs'),
	('max_wal_senders', 'warn', NOT active AND senders_used >= senders, format('%s of %s used', senders_used, senders),
		format('all %s used, none is left to follow changes', senders) || by_age, 'raise it and restart Postgres'),
	('max_slot_wal_keep_size', CASE WHEN idle_timeout IS NULL THEN 'fail' ELSE 'warn' END, keep < 0, current_setting('max_slot_wal_keep_size'),
		'not set: ' || coalesce('a slot may fill the primary''s disk until nobody has followed it for ' || idle_timeout || ' (idle_replication_slot_timeout)',
			'while no node follows, the slot may fill the primary''s disk'), 'set max_slot_wal_keep_size to what the disk can spare, and reload'),
	('slot', 'warn', slot_name IS NULL OR lost OR NOT active OR retained >= CASE WHEN keep < 0 THEN most ELSE least(most, keep / 2) END, 'followed, ' || retains,
		CASE WHEN slot_name IS NULL THEN 'there is none'
			WHEN lost AND idle THEN 'nobody followed it for idle_replication_slot_timeout, so Postgres invalidated it'
			WHEN lost THEN 'it retained more WAL than max_slot_wal_keep_size allows, so Postgres invalidated it'
			WHEN NOT active THEN 'no node follows it, and it ' || retains
			ELSE 'followed, ' || retains || coalesce('; the oldest write transaction is ' || writer, '') END,
		CASE WHEN slot_name IS NULL THEN 'start a node that may make it, or run `listedge migrate up`'
			WHEN lost THEN 'nothing: the next follower makes a new one; raise max_slot_wal_keep_size if it happens often'
			WHEN NOT active THEN 'start a node, or see why none follows; `listedge migrate drop-slot` if none will ever run again'
			WHEN writer IS NULL THEN 'see whether the follower keeps up: ListedgeRetainedWAL in the runbook'
			ELSE 'end that transaction: Postgres keeps WAL from its begin on' END),
	('synchronous_standby_names', 'warn', current_setting('synchronous_standby_names') LIKE '%*%', quote_literal(current_setting('synchronous_standby_names')),
		quote_literal(current_setting('synchronous_standby_names')) || ' counts a follower as a standby that commits wait for' || by_age,
		'name the standbys instead of *'),
	('usage', 'warn', EXISTS (SELECT FROM unwritable), 'this user may write the usage of keys',
		'the usage of keys is not counted: this user may not write it', (SELECT string_agg(command, '; ') FROM unwritable)),
	('locks', 'warn', EXISTS (SELECT FROM locked), 'no statement waits for one on the tables', (SELECT string_agg(text, '; ') FROM locked),
		'let the holder finish, or end it: ' || (SELECT string_agg(command, '; ') FROM locked))
) finding (subject, level, bad, fine, broken, remedy)
UNION ALL
SELECT subject, CASE WHEN bad THEN 'warn' ELSE 'ok' END, CASE WHEN most IS NULL THEN 'none' WHEN bad
	THEN format('%s connections, %s used, %s not by nodes; %s nodes use up to %s', most, used, others, nodes, nodes * $4::int)
	ELSE format('%s connections, %s used, %s not by nodes: enough for %s nodes', most, used, others, (most - others) / greatest($4::int, 1)) END,
	CASE WHEN bad THEN format(raise, others + nodes * $4::int) || ', or lower --database-connections' ELSE '' END
FROM bounds, LATERAL (SELECT greatest($6::int, 2) AS nodes) n, -- one replaces another
	LATERAL (SELECT coalesce(others + nodes * $4::int > most OR used >= most, false) AS bad) b
