package apikey

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"unique"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"listedge/internal/lists"
	"listedge/origin/postgres"
)

const serverSQL = `SELECT ` + postgres.ServerSQL

// lookupSQL bounds the texts that it returns: names may have 64 kB.
var lookupSQL = `
SELECT k.key_hash, k.id, k.workspace_id, ` + scopesSQL() + `, k.expires_at,
       coalesce(k.revoked_at <= now(), false), coalesce(w.suspended_at <= now(), false),
       coalesce(k.revoked_at > now(), false) OR coalesce(w.suspended_at > now(), false),
       k.rate_per_second, k.burst, w.rate_per_second, w.burst, k.xmin::text::int8, w.xmin::text::int8, w.quota, w.quota_period,
       left(k.key_prefix, 32), left(k.name, 80)
FROM public.api_keys k JOIN public.workspaces w ON w.id = k.workspace_id
WHERE k.key_hash = ANY($1)`

// scopesSQL selects Key.Scopes.
func scopesSQL() string {
	var bits []string
	for _, c := range lists.All {
		bits = append(bits, fmt.Sprintf("('%s' = ANY(k.scopes))::int << %d", c.Scope(), c))
	}
	return "(" + strings.Join(bits, ") | (") + ")"
}

var (
	// transactionSettings begin a look-up behind a connection pooler.
	transactionSettings = postgres.SessionSettings(postgres.KeyTimeout).Local()
	binary              = []int16{pgx.BinaryFormatCode}
)

// Store looks keys up in Postgres.
type Store struct {
	db      *postgres.Database
	breaker postgres.Breaker
}

// NewStore reads the keys of a database.
func NewStore(db *postgres.Database) *Store {
	return &Store{db: db, breaker: postgres.NewBreaker("keys", postgres.PrimaryCooldown)}
}

// Lookup returns those of the keys that exist. It reads them from the primary in one
// query. run is the run that the primary must have; empty = not known
// (postgres.Primary.Read).
// Errors: ErrUnavailable, ErrWrongServer, ErrTimeout of package postgres.
func (s *Store) Lookup(ctx context.Context, hashes []Hash, run string) (found map[Hash]Key, err error) {
	if err = s.breaker.Do(func() error { found, err = s.read(ctx, hashes, run); return err }); err != nil {
		return nil, fmt.Errorf("look up keys: %w", err)
	}
	return found, nil
}

// Check returns why keys cannot be read from the primary. It looks up a key that does
// not exist.
func (s *Store) Check(ctx context.Context) error {
	if _, err := s.read(ctx, []Hash{{}}, s.db.Followed().StartedAt); err != nil {
		return fmt.Errorf("API keys cannot be read: %w", postgres.Classify(err))
	}
	return nil
}

// Probe finds out whether Postgres is back after a failure, or the primary after
// another server had answered.
func (s *Store) Probe(ctx context.Context) {
	s.breaker.Probe(ctx, s.db.Keys.Pool)
	if s.db.WrongServer() != nil {
		ctx, cancel := context.WithTimeout(ctx, postgres.PingTimeout)
		defer cancel()
		_ = s.Check(ctx) // the database notes the result
	}
}

// BreakerOpen says whether look-ups are refused without a query.
func (s *Store) BreakerOpen() bool { return !s.breaker.IsClosed() }

func (s *Store) read(ctx context.Context, hashes []Hash, run string) (found map[Hash]Key, err error) {
	err = s.db.Keys.Read(ctx, run, func() (by postgres.Server, err error) {
		found, by, err = s.query(ctx, hashes)
		return by, err
	})
	return found, err
}

// query makes one query on any connection and returns which server answered.
func (s *Store) query(ctx context.Context, hashes []Hash) (found map[Hash]Key, by postgres.Server, err error) {
	wanted := make([][]byte, len(hashes))
	for i := range hashes {
		wanted[i] = hashes[i][:]
	}
	conn, err := s.db.Keys.Pool.Acquire(ctx)
	if err != nil {
		return nil, by, err
	}
	defer conn.Release()
	argument, err := conn.Conn().TypeMap().Encode(pgtype.ByteaArrayOID, pgtype.BinaryFormatCode, wanted, nil)
	if err != nil {
		return nil, by, err
	}
	// One transaction, so that one server answers all of it, also behind a pooler,
	// where nothing can be prepared.
	batch, pg := &pgconn.Batch{}, conn.Conn().PgConn()
	if postgres.Pooled(pg) {
		batch.ExecParams(transactionSettings, nil, nil, nil, nil)
	}
	batch.ExecParams(serverSQL, nil, nil, nil, nil)
	batch.ExecParams(lookupSQL, [][]byte{argument}, []uint32{pgtype.ByteaArrayOID}, binary, binary)
	results := pg.ExecBatch(ctx, batch)
	defer func() { err = cmp.Or(results.Close(), err) }() // Close has the server's error
	if postgres.Pooled(pg) && results.NextResult() {
		_, _ = results.ResultReader().Close()
	}
	if !results.NextResult() || !results.ResultReader().NextRow() {
		return nil, by, postgres.ErrProtocol
	}
	by = postgres.ParseServer(string(results.ResultReader().Values()[0]), conn.Conn())
	if _, err = results.ResultReader().Close(); err != nil {
		return nil, by, err
	}
	if !results.NextResult() {
		return nil, by, postgres.ErrProtocol
	}
	found, err = readKeys(pgx.RowsFromResultReader(conn.Conn().TypeMap(), results.ResultReader()), by.StartedAt)
	return found, by, err
}

// readKeys reads the rows of lookupSQL.
func readKeys(rows pgx.Rows, run string) (map[Hash]Key, error) {
	var (
		found                     = map[Hash]Key{}
		from                      = unique.Make(run)
		key                       Key
		hash                      []byte
		expires                   pgtype.Timestamptz
		rate, workspaceRate       *float64
		burst, workspaceBurst     *int32
		version, workspaceVersion int64
		quota                     *int64
		quotaPeriod               *string
	)
	_, err := pgx.ForEachRow(rows, []any{&hash, &key.ID, &key.Workspace, &key.Scopes, &expires, &key.Revoked, &key.Suspended, &key.Scheduled,
		&rate, &burst, &workspaceRate, &workspaceBurst, &version, &workspaceVersion, &quota, &quotaPeriod, &key.Label.Prefix, &key.Label.Name}, func() error {
		if len(hash) != len(Hash{}) {
			return errors.New("a key's hash is not a SHA-256")
		}
		key.StartedAt = from
		key.ExpiresAt = expiryOf(expires)
		key.Limit = LimitOf(rate, burst, DefaultLimit)
		key.WorkspaceLimit = LimitOf(workspaceRate, workspaceBurst, Limit{})
		if key.Limit.Version = version; key.WorkspaceLimit.Set {
			key.WorkspaceLimit.Version = workspaceVersion
		}
		key.Quota = QuotaOf(quota, quotaPeriod)
		found[Hash(hash)] = key
		return nil
	})
	return found, err
}

// expiryOf reads the column. Other systems may write 'infinity' to it: one such
// row must not fail the look-up of the other keys in the query.
func expiryOf(t pgtype.Timestamptz) int64 {
	switch {
	case !t.Valid || t.InfinityModifier == pgtype.Infinity:
		return 0
	case t.InfinityModifier == pgtype.NegativeInfinity:
		return math.MinInt64
	}
	return cmp.Or(t.Time.UnixMicro(), 1) // 0 would be never
}
