-- Writes a batch if its number ($2) is above those that its run ($1) has written. A batch that is
-- sent again while the first statement still runs waits for it, at the row of its run. Rows are
-- locked in a fixed order, so that two nodes never wait for each other in a circle. A sum stays
-- at the largest number, so that no row, whatever it has, keeps the others from being written.
WITH first_time AS (
	INSERT INTO public.listedge_usage_writers AS w (run, batch, written_at) VALUES ($1::uuid, $2::int8, now())
	ON CONFLICT (run) DO UPDATE SET batch = excluded.batch, written_at = excluded.written_at WHERE w.batch < excluded.batch
	RETURNING run
), used AS (
	SELECT workspace AS workspace_id, hour, key AS key_id, sum(requests)::int8 AS requests, sum(refused)::int8 AS refused,
		sum("notModified")::int8 AS not_modified,
		sum(bypassed)::int8 AS bypassed, sum(bytes)::int8 AS bytes, sum(queries)::int8 AS queries, max("lastUsed") AS last_used_at
	FROM first_time, json_to_recordset($3::json) AS u (workspace uuid, hour timestamptz, key uuid, requests int8, refused int8, "notModified" int8,
		bypassed int8, bytes int8, queries int8, "lastUsed" timestamptz)
	GROUP BY workspace, hour, key
), counted AS (
	INSERT INTO public.listedge_key_usage AS k (workspace_id, hour, key_id, requests, refused, not_modified, bypassed, bytes, queries)
	SELECT workspace_id, hour, key_id, requests, refused, not_modified, bypassed, bytes, queries FROM used ORDER BY workspace_id, hour, key_id
	ON CONFLICT (workspace_id, hour, key_id) DO UPDATE SET
		requests = least(k.requests, 9223372036854775807 - excluded.requests) + excluded.requests,
		refused = least(k.refused, 9223372036854775807 - excluded.refused) + excluded.refused,
		not_modified = least(k.not_modified, 9223372036854775807 - excluded.not_modified) + excluded.not_modified,
		bypassed = least(k.bypassed, 9223372036854775807 - excluded.bypassed) + excluded.bypassed,
		bytes = least(k.bytes, 9223372036854775807 - excluded.bytes) + excluded.bytes,
		queries = least(k.queries, 9223372036854775807 - excluded.queries) + excluded.queries
)
INSERT INTO public.listedge_key_last_used AS l (key_id, last_used_at)
SELECT key_id, max(last_used_at) FROM used WHERE requests > 0 GROUP BY key_id ORDER BY key_id
ON CONFLICT (key_id) DO UPDATE SET last_used_at = excluded.last_used_at WHERE l.last_used_at < excluded.last_used_at
