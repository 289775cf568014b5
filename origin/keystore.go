package origin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"listedge/origin/postgres"
)

// keySettings is for transactions behind a pooler.
var keySettings = postgres.SessionSettings(postgres.KeyTimeout).Local()

var binaryFormat = []int16{pgtype.BinaryFormatCode}

// KeyStore looks keys up in Postgres.
type KeyStore struct {
	db      *postgres.Database
	breaker postgres.Breaker
}

// NewKeyStore reads the database's keys.
func NewKeyStore(db *postgres.Database) *KeyStore {
	return &KeyStore{db: db, breaker: postgres.NewBreaker("keys", postgres.PrimaryCooldown)}
}

// Lookup returns those of the keys that exist, in one query, from the primary
// (postgres.Primary.Read). Errors: ErrUnavailable, ErrWrongServer, ErrTimeout.
func (s *KeyStore) Lookup(ctx context.Context, hashes []KeyHash, run string) (found map[KeyHash]Key, err error) {
	err = s.breaker.Do(func() error {
		return s.db.Keys.Read(ctx, run, func() (by postgres.Server, err error) {
			found, by, err = s.lookup(ctx, hashes)
			return by, err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("look up keys: %w", err)
	}
	return found, nil
}

// Probe is Origin.Probe, for keys, and looks whether the right server is back.
func (s *KeyStore) Probe(ctx context.Context) {
	s.breaker.Probe(ctx, s.db.Keys.Pool)
	if s.db.WrongServer() != nil {
		ctx, cancel := context.WithTimeout(ctx, postgres.PingTimeout)
		defer cancel()
		_ = s.leadsToPrimary(ctx) // which notes what it finds
	}
}

// leadsToPrimary returns why what answers is not taken for the primary.
func (s *KeyStore) leadsToPrimary(ctx context.Context) error {
	return postgres.Classify(s.db.Keys.Read(ctx, s.db.Followed().Incarnation, func() (postgres.Server, error) {
		_, by, err := s.lookup(ctx, []KeyHash{{}})
		return by, err
	}))
}

// BreakerOpen says whether look-ups are being refused without asking.
func (s *KeyStore) BreakerOpen() bool { return !s.breaker.IsClosed() }

// lookup also says who answered, whatever it found.
func (s *KeyStore) lookup(ctx context.Context, hashes []KeyHash) (found map[KeyHash]Key, by postgres.Server, err error) {
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
	// In one piece, and nothing prepared: see session for what is behind a pooler.
	question, pg := &pgconn.Batch{}, conn.Conn().PgConn()
	if postgres.Pooled(pg) {
		question.ExecParams(keySettings, nil, nil, nil, nil)
	}
	question.ExecParams(lookupKeysSQL, [][]byte{argument}, []uint32{pgtype.ByteaArrayOID}, binaryFormat, binaryFormat)
	results := pg.ExecBatch(ctx, question)
	defer func() { err = cmp.Or(results.Close(), err) }() // which knows what the server refused
	if postgres.Pooled(pg) && results.NextResult() {
		_, _ = results.ResultReader().Close()
	}
	if !results.NextResult() {
		return nil, by, postgres.ErrProtocol
	}
	rows := pgx.RowsFromResultReader(conn.Conn().TypeMap(), results.ResultReader())
	defer rows.Close()
	found = make(map[KeyHash]Key, len(hashes))
	var (
		hash                      []byte
		expires                   pgtype.Timestamptz
		rate, workspaceRate       *float64
		burst, workspaceBurst     *int32
		version, workspaceVersion int64
		key                       Key
	)
	ofKey := []any{nil, &hash, &key.ID, &key.Workspace, &key.Items, &key.Contacts, &expires, &key.Revoked, &key.Suspended, &key.Scheduled,
		&rate, &burst, &workspaceRate, &workspaceBurst, &version, &workspaceVersion}
	ofServer := make([]any, len(ofKey)) // what is nil is not read
	var server string
	ofServer[0] = &server
	if rows.Next() {
		err = rows.Scan(ofServer...)
		by = postgres.ParseServer(server, conn.Conn())
	}
	for err == nil && rows.Next() {
		if err = rows.Scan(ofKey...); err != nil {
			break
		}
		if len(hash) != len(KeyHash{}) {
			return nil, by, errors.New("a key's hash is not a SHA-256")
		}
		k := key
		k.Run = by.Incarnation
		k.ExpiresAt = expiryOf(expires)
		k.Limit = LimitOf(rate, burst, DefaultLimit)
		k.WorkspaceLimit = LimitOf(workspaceRate, workspaceBurst, Limit{})
		if k.Limit.Version = version; k.WorkspaceLimit.Set {
			k.WorkspaceLimit.Version = workspaceVersion
		}
		found[KeyHash(hash)] = k
	}
	return found, by, cmp.Or(err, rows.Err())
}

// expiryOf reads the column, in which other systems may write 'infinity': one
// odd row must not spoil the look-up of all keys asked for with it.
func expiryOf(t pgtype.Timestamptz) int64 {
	switch {
	case !t.Valid || t.InfinityModifier == pgtype.Infinity:
		return 0
	case t.InfinityModifier == pgtype.NegativeInfinity:
		return math.MinInt64
	}
	return cmp.Or(t.Time.UnixMicro(), 1) // 0 would be never
}
