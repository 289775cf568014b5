package origin

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sony/gobreaker/v2"
)

// An API key is
//
//	lk_ | 34 random base-62 characters | 6 base-62 characters: CRC-32 (IEEE) of the 34
//
// The checksum ends mistyped and made-up keys where they arrive; 202 random
// bits make the rest unguessable. The database has its SHA-256 only.
const (
	keyPrefix  = "lk_"
	keyRandom  = 34
	keySum     = 6
	keyLength  = len(keyPrefix) + keyRandom + keySum
	keyVisible = len(keyPrefix) + 6 // characters stored and listed, to tell keys apart

	base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// KeyHash is the SHA-256 of a key: its name everywhere but in its owner's hands.
type KeyHash [sha256.Size]byte

// beginning is as much of the hash as tells keys apart that nobody has made to
// be alike.
func (h *KeyHash) beginning() uint64 { return binary.LittleEndian.Uint64(h[:]) }

// HashKey returns the hash of a well-formed key; ok is false for a text that
// cannot be a key. It does not allocate.
func HashKey(key []byte) (hash KeyHash, ok bool) {
	if len(key) != keyLength || string(key[:len(keyPrefix)]) != keyPrefix {
		return KeyHash{}, false
	}
	random, sum := key[len(keyPrefix):keyLength-keySum], key[keyLength-keySum:]
	ok = true
	for _, c := range random { // without a branch that depends on what the key is
		ok = ok && isBase62[c]
	}
	if want := keyChecksum(random); !ok || string(sum) != string(want[:]) {
		return KeyHash{}, false
	}
	return sha256.Sum256(key), true
}

// NewKey makes a well-formed key from the system's random numbers. No database
// knows it.
func NewKey() string {
	key := append(make([]byte, 0, keyLength), keyPrefix...)
	var b [1]byte
	for len(key) < len(keyPrefix)+keyRandom {
		_, _ = rand.Read(b[:])           // never fails
		if int(b[0]) < 256/len62*len62 { // else the first characters were likelier
			key = append(key, base62[int(b[0])%len62])
		}
	}
	sum := keyChecksum(key[len(keyPrefix):])
	return string(append(key, sum[:]...))
}

const len62 = len(base62)

func keyChecksum(random []byte) (sum [keySum]byte) {
	n := crc32.ChecksumIEEE(random)
	for i := keySum - 1; i >= 0; i-- {
		sum[i] = base62[n%uint32(len62)]
		n /= uint32(len62)
	}
	return sum
}

var isBase62 = func() (is [256]bool) {
	for _, c := range base62 {
		is[c] = true
	}
	return is
}()

// Limit is a token bucket as the tables have it.
type Limit struct {
	Set   bool // false = no bucket
	Rate  float64
	Burst int64
	// Version orders what nodes have heard of a limit: the transaction that
	// last wrote its row. A node that has not heard of a change yet goes by
	// the bucket's newer one.
	Version int64
}

// DefaultLimit is that of a key whose row names none.
var DefaultLimit = Limit{Set: true, Rate: 50, Burst: 100}

// LimitOf reads the two columns, or flags: missing is the limit where there is no
// rate, and a burst that is not given is twice the rate.
func LimitOf(rate *float64, burst *int32, missing Limit) Limit {
	if rate == nil {
		if burst != nil && missing.Set {
			missing.Burst = int64(*burst)
		}
		return missing
	}
	l := Limit{Set: true, Rate: *rate, Burst: max(1, int64(2**rate))}
	if burst != nil {
		l.Burst = int64(*burst)
	}
	return l
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

// Key is what a node knows of an API key. Comparable: equal keys behave alike.
type Key struct {
	Workspace, ID  uuid.UUID
	Items          bool // scope items:read
	Contacts       bool // scope contacts:read
	Revoked        bool
	Suspended      bool   // its workspace is
	Scheduled      bool   // it will be revoked, or its workspace suspended, at a moment that nobody tells of
	Run            string // when the server that told so was started, by its own clock
	ExpiresAt      int64  // microseconds since 1970; 0 = never
	Limit          Limit
	WorkspaceLimit Limit
}

// Valid says whether the key opens anything at all at that moment.
func (k *Key) Valid(now time.Time) bool {
	return !k.Revoked && (k.ExpiresAt == 0 || now.UnixMicro() < k.ExpiresAt)
}

// May says whether the key has the scope of the collection.
func (k *Key) May(c Collection) bool {
	if c == Items {
		return k.Items
	}
	return k.Contacts
}

// KeyStore looks keys up in Postgres.
type KeyStore struct {
	pool    *pgxpool.Pool
	breaker *gobreaker.CircuitBreaker[map[KeyHash]Key]
}

// NewKeyStore reads the database's keys.
func NewKeyStore(db *Database) *KeyStore {
	return &KeyStore{pool: db.keys, breaker: newBreaker[map[KeyHash]Key]("keys", primaryRest)}
}

// Lookup returns those of the keys that exist, in one query, from the primary
// of which is known when it was started; empty = it is not (fromRun).
// Errors: ErrUnavailable, ErrTimeout.
func (s *KeyStore) Lookup(ctx context.Context, hashes []KeyHash, run string) (map[KeyHash]Key, error) {
	found, err := s.breaker.Execute(func() (map[KeyHash]Key, error) {
		found, err := fromRun(s.pool, run, func() (found map[KeyHash]Key, by string, err error) {
			found, err = s.lookup(ctx, hashes)
			for _, k := range found {
				return found, k.Run, err // one query is one server's
			}
			return found, run, err
		})
		return found, classify(err)
	})
	if err != nil {
		return nil, fmt.Errorf("look up keys: %w", breakerError(err))
	}
	return found, nil
}

// Probe is Origin.Probe, for keys.
func (s *KeyStore) Probe(ctx context.Context) { probe(ctx, s.breaker, s.pool) }

// BreakerOpen says whether look-ups are being refused without asking.
func (s *KeyStore) BreakerOpen() bool { return s.breaker.State() != gobreaker.StateClosed }

func (s *KeyStore) lookup(ctx context.Context, hashes []KeyHash) (map[KeyHash]Key, error) {
	wanted := make([][]byte, len(hashes))
	for i := range hashes {
		wanted[i] = hashes[i][:]
	}
	rows, err := s.pool.Query(ctx, lookupKeysSQL, wanted)
	if err != nil {
		return nil, err
	}
	found := make(map[KeyHash]Key, len(hashes))
	var (
		hash                      []byte
		expires                   pgtype.Timestamptz
		rate, workspaceRate       *float64
		burst, workspaceBurst     *int32
		version, workspaceVersion int64
		key                       Key
	)
	_, err = pgx.ForEachRow(rows, []any{&hash, &key.ID, &key.Workspace, &key.Items, &key.Contacts, &expires, &key.Revoked, &key.Suspended, &key.Scheduled,
		&rate, &burst, &workspaceRate, &workspaceBurst, &version, &workspaceVersion, &key.Run}, func() error {
		if len(hash) != len(KeyHash{}) {
			return errors.New("a key's hash is not a SHA-256")
		}
		k := key
		k.ExpiresAt = expiryOf(expires)
		k.Limit = LimitOf(rate, burst, DefaultLimit)
		k.WorkspaceLimit = LimitOf(workspaceRate, workspaceBurst, Limit{})
		if k.Limit.Version = version; k.WorkspaceLimit.Set {
			k.WorkspaceLimit.Version = workspaceVersion
		}
		found[KeyHash(hash)] = k
		return nil
	})
	return found, err
}
