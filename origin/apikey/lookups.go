package apikey

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unique"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"listedge/internal/fleet"
	"listedge/internal/list"
	"listedge/origin/postgres"
)

// These constants bound the load on Postgres from keys that are not in memory. A
// node has one query in flight at a time. A query costs one index look-up for each
// key. Anybody can send unknown keys, so the rate of queries that meet one is
// limited: a node makes at most unknownQueryBurst + unknownQueriesPerSecond·t of
// them within t seconds.
const (
	// lookupTimeout is below recentAge, so that a hung server opens the breaker before that.
	lookupTimeout = time.Second

	lookupBatch             = 1000   // keys in one query
	lookupBacklog           = 10_000 // waiting keys of one priority; further ones fail with ErrOverloaded
	unknownQueriesPerSecond = 50
	unknownQueryBurst       = 50
	// lookupShare is how many keys of a query are reserved for each priority that
	// has keys waiting. So the last key of a full backlog is looked up after 40
	// queries, 0.8 s.
	lookupShare = lookupBatch / 4
)

// lookupPriority orders the waiting keys. Keys of one priority are looked up
// first in, first out.
type lookupPriority uint8

const (
	knownKey    lookupPriority = iota // has an entry
	ordinaryKey                       // new to this node
	suspectKey                        // new, from a client that sent too many unknown keys
	lookupPriorities
)

// lookupQueue holds the keys that wait for a look-up. It holds each key once.
type lookupQueue struct {
	calls  map[Hash]*lookupCall
	queued [lookupPriorities][]Hash
}

type lookupCall struct {
	done chan struct{} // closed when err is set
	err  error
}

// join returns the waiting calls of a key's hashes, or adds some. It returns nil if the backlog
// is full.
func (q *lookupQueue) join(hashes []Hash, p lookupPriority) (calls []*lookupCall) {
	for _, hash := range hashes {
		call := q.calls[hash]
		if call == nil && len(q.queued[p]) >= lookupBacklog {
			return nil
		}
		if call == nil {
			call = &lookupCall{done: make(chan struct{})}
			q.calls[hash] = call
			q.queued[p] = append(q.queued[p], hash)
		}
		calls = append(calls, call)
	}
	return calls
}

// waitFor waits until one of the calls has not failed with ErrUnknown, or all have.
func waitFor(ctx context.Context, calls []*lookupCall) error {
	for _, call := range calls {
		select {
		case <-call.done:
			if !errors.Is(call.err, ErrUnknown) {
				return call.err
			}
		case <-ctx.Done():
			return errors.Join(postgres.ErrUnavailable, ctx.Err())
		}
	}
	return ErrUnknown
}

// next takes the keys of the next query from the queue.
func (q *lookupQueue) next() (batch []Hash, calls []*lookupCall) {
	for p, waiting := range q.queued {
		room := lookupBatch - len(batch)
		for _, lower := range q.queued[p+1:] {
			room -= min(len(lower), lookupShare)
		}
		n := min(len(waiting), room)
		for _, hash := range waiting[:n] {
			batch, calls = append(batch, hash), append(calls, q.calls[hash])
			delete(q.calls, hash)
		}
		q.queued[p] = waiting[n:]
		if n == len(waiting) {
			q.queued[p] = nil // frees the memory
		}
	}
	return batch, calls
}

// Stats is a snapshot for metrics.
type Stats struct {
	Hits        uint64 // requests answered from memory
	Loaded      uint64 // requests answered after a look-up
	Queries     uint64 // to Postgres
	Unknown     uint64 // requests with a key that does not exist
	Failures    uint64 // requests that could not be answered
	WithinGrace uint64 // requests answered by an old entry because Postgres did not answer
	Known       int    // entries
}

// lookup is the statement that looks keys up. Its first row says which server answers. The
// others, of the keys that exist, are rows in JSON. It bounds their texts: names may have 64 kB.
// The tenant and the quota have scopes of their own, because others may give api_keys columns of those names.
// Of a key's scopes it selects the places among the known ones, $2. ANY is NULL for a scope that an array with NULL has not.
var lookup = &postgres.Statement{
	Name:    "keys",
	Columns: []postgres.Column{{Name: "server", Type: pgtype.TextOID}, {Name: "key", Type: pgtype.TextOID}},
	SQL: `SELECT ` + postgres.ServerSQL + `, NULL UNION ALL SELECT NULL, row_to_json(found)::text FROM (
SELECT encode(k.key_hash, 'base64') AS "Hash", k.id AS "ID", k.workspace_id AS "Workspace",
       (SELECT ` + TenantSQL + ` FROM (SELECT w.id, w.tenant) t) AS "Tenant",
       ARRAY(SELECT n - 1 FROM unnest($2::text[]) WITH ORDINALITY known (scope, n) WHERE scope = ANY (k.scopes)) AS "Lists",
       CASE WHEN isfinite(k.expires_at) THEN greatest(extract(epoch FROM least(k.expires_at, '10000-01-01Z')) * 1000000, 1)::int8
            WHEN k.expires_at < now() THEN 1 ELSE 0 END AS "ExpiresAt",
       coalesce(k.revoked_at <= now(), false) AS "Revoked", coalesce(w.suspended_at <= now(), false) AS "Suspended",
       coalesce(k.revoked_at > now(), false) OR coalesce(w.suspended_at > now(), false) AS "Scheduled",
       ` + RateSQL("k.rate_per_second") + ` AS "Rate", k.burst AS "Burst", k.xmin::text::int8 AS "Version",
       ` + RateSQL("w.rate_per_second") + ` AS "WorkspaceRate", w.burst AS "WorkspaceBurst", w.xmin::text::int8 AS "WorkspaceVersion",
       (SELECT ` + QuotaSQL + ` FROM (SELECT w.quota, w.quota_period) q) AS "Quota",
       json_build_object('Prefix', left(k.key_prefix, 32), 'Name', left(k.name, 80)) AS "Label"
FROM public.api_keys k JOIN public.workspaces w ON w.id = k.workspace_id WHERE k.key_hash = ANY($1::bytea[])) found`,
}

// formsOf is the statement that reads the forms of imported keys. Its row has what a first row of lookup has, and the forms in JSON.
var formsOf = &postgres.Statement{
	Name:    "forms",
	Columns: lookup.Columns,
	SQL: `SELECT ` + postgres.ServerSQL + `, (SELECT coalesce(json_agg(json_build_object('Digest', digest, 'Behind', behind)), '[]')::text
	FROM public.listedge_key_forms)`,
}

// row is a key as the statement lookup returns it.
type row struct {
	Key
	Hash                      []byte
	Lists                     []int // the numbers of those that it may read
	Rate, WorkspaceRate       *float64
	Burst, WorkspaceBurst     *int32
	Version, WorkspaceVersion int64
}

// Lookup looks keys up in Postgres and returns those that exist. run is that of the
// primary that must answer; empty = any (Store.Lookup).
type Lookup func(ctx context.Context, hashes []Hash, run string) (map[Hash]Key, error)

// Store looks keys up in Postgres.
type Store struct {
	db      *postgres.Database
	lists   *list.Set
	breaker postgres.Breaker
}

// errNotAsked: Postgres was not asked, because the breaker is not closed.
var errNotAsked = fmt.Errorf("look up keys: %w: it failed several times in a row", postgres.ErrUnavailable)

// NewStore makes the Store that looks up keys of the lists in a database.
func NewStore(db *postgres.Database, lists *list.Set) *Store {
	return &Store{db: db, lists: lists, breaker: postgres.NewBreaker(postgres.PrimaryCooldown)}
}

// Lookup returns those of the keys that exist. It reads them from the primary in one
// query. run is the run that the primary must have; empty = not known
// (postgres.Primary.Read). While the breaker is not closed, only Probe tries the server: behind
// a look-up that did, all others would wait.
// Errors: ErrUnavailable, ErrWrongServer, ErrTimeout of package postgres.
func (s *Store) Lookup(ctx context.Context, hashes []Hash, run string) (found map[Hash]Key, err error) {
	if s.BreakerOpen() {
		return nil, errNotAsked
	}
	err = s.breaker.Do(func() error { found, err = s.read(ctx, hashes, run); return err })
	if err != nil {
		return nil, fmt.Errorf("look up keys: %w", err)
	}
	return found, nil
}

// Forms reads the forms of imported keys as Lookup reads keys.
func (s *Store) Forms(ctx context.Context, run string) (forms []Form, startedAt string, err error) {
	if s.BreakerOpen() {
		return nil, "", errNotAsked
	}
	err = s.breaker.Do(func() error { forms, startedAt, err = s.readForms(ctx, run); return err })
	if err != nil {
		return nil, "", fmt.Errorf("read the forms of keys: %w", err)
	}
	return forms, startedAt, nil
}

// Check returns why keys, or their forms, cannot be read from the primary. It looks up a key that does
// not exist.
func (s *Store) Check(ctx context.Context) error {
	_, err := s.read(ctx, []Hash{{}}, s.db.Options.Proven())
	if err == nil {
		_, _, err = s.readForms(ctx, s.db.Options.Proven())
	}
	if err != nil {
		return fmt.Errorf("API keys cannot be read: %w", postgres.Classify(err))
	}
	return nil
}

// Probe finds out whether Postgres is back after a failure, or the primary after
// another server had answered.
func (s *Store) Probe(ctx context.Context) {
	s.breaker.Probe(ctx, s.db.Keys.Ping)
	if s.db.WrongServer() != nil {
		ctx, cancel := context.WithTimeout(ctx, postgres.PingTimeout)
		defer cancel()
		_ = s.Check(ctx) // the database notes the result
	}
}

// BreakerOpen says whether look-ups are refused without a query.
func (s *Store) BreakerOpen() bool { return !s.breaker.IsClosed() }

func (s *Store) read(ctx context.Context, hashes []Hash, run string) (found map[Hash]Key, err error) {
	err = s.db.Keys.Read(ctx, run, func() (by fleet.Server, err error) {
		found, by, err = s.query(ctx, hashes)
		return by, err
	})
	return found, err
}

func (s *Store) readForms(ctx context.Context, run string) (forms []Form, startedAt string, err error) {
	err = s.db.Keys.Read(ctx, run, func() (by fleet.Server, err error) {
		err = s.db.Keys.Use(ctx, func(conn *pgx.Conn) error {
			return formsOf.Query(ctx, conn, nil, func(values [][]byte) error {
				by = postgres.ParseServer(string(values[0]), conn.PgConn())
				return json.Unmarshal(values[1], &forms)
			})
		})
		startedAt = by.StartedAt
		return by, err
	})
	return forms, startedAt, err
}

// query makes one query on any connection and returns which server answered.
func (s *Store) query(ctx context.Context, hashes []Hash) (found map[Hash]Key, by fleet.Server, err error) {
	wanted := make([][]byte, len(hashes))
	for i := range hashes {
		wanted[i] = hashes[i][:]
	}
	conn, err := postgres.AcquireWaiting(ctx, s.db.Keys.Pool)
	if err != nil {
		return nil, by, err
	}
	defer conn.Release()
	hashArray, err := conn.Conn().TypeMap().Encode(pgtype.ByteaArrayOID, pgtype.TextFormatCode, wanted, nil)
	if err != nil {
		return nil, by, err
	}
	scopeArray, err := conn.Conn().TypeMap().Encode(pgtype.TextArrayOID, pgtype.TextFormatCode, s.lists.Scopes(), nil)
	if err != nil {
		return nil, by, err
	}
	found = map[Hash]Key{}
	err = lookup.Query(ctx, conn.Conn(), [][]byte{hashArray, scopeArray}, func(values [][]byte) error {
		if values[0] != nil {
			by = postgres.ParseServer(string(values[0]), conn.Conn().PgConn())
			return nil
		}
		var r row
		if err := json.Unmarshal(values[1], &r); err != nil {
			return err
		}
		found[Hash(r.Hash)] = r.key(by.StartedAt) // one of those that were asked for
		return nil
	})
	return found, by, err
}

// key returns the key as the server of that run has it.
func (r *row) key(run string) Key {
	key := r.Key
	key.StartedAt = unique.Make(run)
	for _, n := range r.Lists {
		key.Scopes |= 1 << n
	}
	key.Limit = LimitOf(r.Rate, r.Burst, DefaultLimit)
	key.WorkspaceLimit = LimitOf(r.WorkspaceRate, r.WorkspaceBurst, Limit{})
	key.Limit.Version = r.Version
	if key.WorkspaceLimit.Set {
		key.WorkspaceLimit.Version = r.WorkspaceVersion
	}
	return key
}
