-- Removes a thousand rows at most from each table: hours that are older than $1, writers that have not
-- written since, and the last use of keys that do not exist any more. Rows that another node is
-- removing are left to it. The writer of batch 0 says since when usage is counted.
WITH hours AS (
	DELETE FROM public.listedge_key_usage WHERE ctid = ANY (ARRAY(SELECT ctid FROM public.listedge_key_usage WHERE hour < now() - $1::interval ORDER BY hour
		LIMIT 1000 FOR UPDATE SKIP LOCKED)) RETURNING 1
), writers AS (
	DELETE FROM public.listedge_usage_writers WHERE ctid = ANY (ARRAY(SELECT ctid FROM public.listedge_usage_writers WHERE written_at < now() - $1::interval AND batch > 0
		LIMIT 1000 FOR UPDATE SKIP LOCKED)) RETURNING 1
), keys AS (
	DELETE FROM public.listedge_key_last_used WHERE ctid = ANY (ARRAY(SELECT ctid FROM public.listedge_key_last_used l WHERE last_used_at < now() - $1::interval
		AND NOT EXISTS (SELECT FROM public.api_keys k WHERE k.id = l.key_id) LIMIT 1000 FOR UPDATE SKIP LOCKED)) RETURNING 1
)
SELECT WHERE greatest((SELECT count(*) FROM hours), (SELECT count(*) FROM writers), (SELECT count(*) FROM keys)) = 1000 -- a row: there may be more
