package usage

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"listedge/origin/postgres"
)

// Kept is how long the numbers of an hour are kept. When a key was last used is kept as
// long as the key.
const Kept = 35 * 24 * time.Hour

// writeSQL writes a batch in one statement, if its number ($2) is above those that its run
// ($1) has written. A batch that is sent again while the first statement still runs waits
// for it, at the row of its run. Rows are locked in a fixed order, so that two nodes never wait
// for each other in a circle.
const writeSQL = `
WITH first_time AS (
	INSERT INTO public.usage_writers AS w (run, batch, written_at) VALUES ($1::uuid, $2::int8, now())
	ON CONFLICT (run) DO UPDATE SET batch = excluded.batch, written_at = excluded.written_at WHERE w.batch < excluded.batch
	RETURNING run
), used AS (
	SELECT workspace AS workspace_id, hour, key AS key_id, sum(requests)::int8 AS requests, sum(refused)::int8 AS refused, sum("notModified")::int8 AS not_modified,
		sum(bypassed)::int8 AS bypassed, sum(bytes)::int8 AS bytes, sum(queries)::int8 AS queries, max("lastUsed") AS last_used_at
	FROM first_time, json_to_recordset($3::json) AS u (workspace uuid, hour timestamptz, key uuid, requests int8, refused int8, "notModified" int8,
		bypassed int8, bytes int8, queries int8, "lastUsed" timestamptz)
	GROUP BY workspace, hour, key
), counted AS (
	INSERT INTO public.key_usage AS k (workspace_id, hour, key_id, requests, refused, not_modified, bypassed, bytes, queries)
	SELECT workspace_id, hour, key_id, requests, refused, not_modified, bypassed, bytes, queries FROM used ORDER BY workspace_id, hour, key_id
	ON CONFLICT (workspace_id, hour, key_id) DO UPDATE SET requests = k.requests + excluded.requests, refused = k.refused + excluded.refused,
		not_modified = k.not_modified + excluded.not_modified, bypassed = k.bypassed + excluded.bypassed, bytes = k.bytes + excluded.bytes, queries = k.queries + excluded.queries
)
INSERT INTO public.key_last_used AS l (key_id, last_used_at)
SELECT key_id, max(last_used_at) FROM used WHERE requests > 0 GROUP BY key_id ORDER BY key_id
ON CONFLICT (key_id) DO UPDATE SET last_used_at = excluded.last_used_at WHERE l.last_used_at < excluded.last_used_at`

// maxExpired bounds the rows of a table that one statement removes.
const maxExpired = 1000

// expireSQL removes $2 rows at most from each table: hours that are older than $1, writers
// that have not written since, and the last use of keys that do not exist any more. Rows
// that another node is removing are left to it. The writer of batch 0 says since when
// usage is counted.
const expireSQL = `
WITH hours AS (
	DELETE FROM public.key_usage WHERE ctid = ANY (ARRAY(SELECT ctid FROM public.key_usage WHERE hour < now() - $1::interval ORDER BY hour LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING 1
), writers AS (
	DELETE FROM public.usage_writers WHERE ctid = ANY (ARRAY(SELECT ctid FROM public.usage_writers WHERE written_at < now() - $1::interval AND batch > 0 LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING 1
), keys AS (
	DELETE FROM public.key_last_used WHERE ctid = ANY (ARRAY(SELECT ctid FROM public.key_last_used l WHERE last_used_at < now() - $1::interval
		AND NOT EXISTS (SELECT FROM public.api_keys k WHERE k.id = l.key_id) LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING 1
)
SELECT greatest((SELECT count(*) FROM hours), (SELECT count(*) FROM writers), (SELECT count(*) FROM keys))`

const serverSQL = `SELECT ` + postgres.ServerSQL

// transactionSettings begin a transaction behind a connection pooler.
var transactionSettings = postgres.WriteSettings(postgres.UsageTimeout).Local()

// Store writes to the primary, on a connection of its own.
type Store struct{ db *postgres.Database }

// NewStore writes to a database.
func NewStore(db *postgres.Database) *Store { return &Store{db} }

// Write implements Writer.
func (s *Store) Write(ctx context.Context, b *Batch) error {
	rows, err := json.Marshal(b.Rows)
	if err != nil {
		return err
	}
	err = s.transact(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, writeSQL, pgx.QueryExecModeExec, b.Run.String(), b.Number, string(rows))
		return err
	})
	if code := postgres.Code(err); strings.HasPrefix(code, "22") || strings.HasPrefix(code, "23") { // a value, or a constraint
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return err
}

// Expire implements Writer.
func (s *Store) Expire(ctx context.Context) (more bool, err error) {
	err = s.transact(ctx, func(tx pgx.Tx) error {
		var most int
		err := tx.QueryRow(ctx, expireSQL, pgx.QueryExecModeExec, fmt.Sprintf("%d hours", Kept/time.Hour), maxExpired).Scan(&most)
		more = most == maxExpired
		return err
	})
	return more, err
}

// transact writes in one transaction on the primary that the fleet follows. Whether the
// server is this primary is asked first, because a write cannot be refused afterwards.
func (s *Store) transact(ctx context.Context, write func(pgx.Tx) error) error {
	primary := s.db.Usage
	err := primary.Read(ctx, s.db.Followed().Run, func() (by postgres.Server, err error) {
		conn, err := primary.Pool.Acquire(ctx)
		if err != nil {
			return by, err
		}
		defer conn.Release()
		var text string
		err = conn.QueryRow(ctx, serverSQL, pgx.QueryExecModeExec).Scan(&text)
		return postgres.ParseServer(text, conn.Conn()), err
	})
	if err == nil {
		err = pgx.BeginTxFunc(ctx, primary.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
			if postgres.Pooled(tx.Conn().PgConn()) {
				if _, err := tx.Exec(ctx, transactionSettings, pgx.QueryExecModeExec); err != nil {
					return err
				}
			}
			return write(tx)
		})
	}
	return postgres.Classify(err)
}
