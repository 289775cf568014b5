package apikey

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"strconv"
	"strings"
	"time"
	"unique"

	"github.com/google/uuid"

	"listedge/internal/list"
)

// An API key is
//
//	lk_ | 34 random base-32 characters | 6 base-62 characters: CRC-32 (IEEE) of the 34
//
// The checksum rejects mistyped and invented keys without a look-up; 170 random
// bits make the others unguessable. The database stores only the SHA-256.
const (
	keyPrefix = "lk_"
	keyRandom = 34
	keySum    = 6
	keyLength = len(keyPrefix) + keyRandom + keySum
	// VisiblePrefix is how many characters of a key are stored and listed, to tell keys apart.
	VisiblePrefix = len(keyPrefix) + 6

	base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// ErrMalformed: the text cannot be a key. ErrUnknown: there is no such key.
var (
	ErrMalformed = errors.New("malformed key")
	ErrUnknown   = errors.New("unknown key")
)

// Hash is the SHA-256 of a key. The database, the cache and logs know keys by it.
type Hash [sha256.Size]byte

// MarshalText implements encoding.TextMarshaler: in hex.
func (h Hash) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h[:]), nil }

// HashOf returns the hash of a well-formed key; ok is false for a text that
// cannot be a key. It does not allocate.
func HashOf(key []byte) (hash Hash, ok bool) {
	if len(key) != keyLength || string(key[:len(keyPrefix)]) != keyPrefix {
		return Hash{}, false
	}
	random, sum := key[len(keyPrefix):keyLength-keySum], key[keyLength-keySum:]
	if want := keyChecksum(random); string(sum) != string(want[:]) {
		return Hash{}, false
	}
	return sha256.Sum256(key), true
}

// LastKey remembers the hash of the last well-formed key that a connection sent: most connections send one key.
// Only the connection's own goroutine uses it.
type LastKey struct {
	text [keyLength]byte // all zero = none yet
	hash Hash
}

// hashOf is HashOf. How long it takes says nothing of how much of the last key the text has: others may have sent that key,
// through one proxy.
func (l *LastKey) hashOf(key []byte) (hash Hash, ok bool) {
	if subtle.ConstantTimeCompare(key, l.text[:]) == 1 && l.text[0] != 0 {
		return l.hash, true
	}
	hash, ok = HashOf(key)
	if ok {
		l.hash = hash
		copy(l.text[:], key)
	}
	return hash, ok
}

// Generate makes a well-formed key from the system's random numbers. It does not
// store it.
func Generate() string {
	random := (rand.Text() + rand.Text())[:keyRandom]
	sum := keyChecksum([]byte(random))
	return keyPrefix + random + string(sum[:])
}

func keyChecksum(random []byte) (sum [keySum]byte) {
	n := crc32.ChecksumIEEE(random)
	for i := keySum - 1; i >= 0; i-- {
		sum[i] = base62[n%uint32(len(base62))]
		n /= uint32(len(base62))
	}
	return sum
}

// Limit is the limit of a key or a workspace, as its row in Postgres has it.
type Limit struct {
	Set   bool    // false = no bucket
	Rate  float64 // tokens a second
	Burst int64   // tokens in a full bucket
	// Version is the transaction that last wrote the limit's row. Nodes that read
	// the row at different times agree on the limit with the higher version.
	Version int64
}

// DefaultLimit is the limit of a key whose row has none.
var DefaultLimit = Limit{Set: true, Rate: 50, Burst: 100}

// RateSQL selects a column of rates; NULL = none. The table's constraint has the same bounds: a
// table that lacks it may have NaN, which JSON does not have.
func RateSQL(column string) string {
	return "CASE WHEN " + column + " >= 0 AND " + column + " < 'Infinity' THEN " + column + " END"
}

// LimitOf makes a limit of the columns, or flags, of rate and burst. Without a rate it returns
// missing, with the burst if given; without a burst, the burst is twice the rate.
func LimitOf(rate *float64, burst *int32, missing Limit) Limit {
	if rate == nil {
		if burst != nil && missing.Set {
			missing.Burst = int64(*burst)
		}
		return missing
	}
	l := Limit{Set: true, Rate: *rate, Burst: int64(min(max(1, 2**rate), math.MaxInt32))} // the column's bound
	if burst != nil {
		l.Burst = int64(*burst)
	}
	return l
}

// Key is what a node knows of an API key. Comparable: equal keys behave alike.
// What each request reads comes first, in one line of memory.
type Key struct {
	Workspace      uuid.UUID
	Tenant         string // whose rows it sees: its workspace's, as Postgres prints the column of a list; empty = nobody's
	Scopes         uint64 // a bit for each list that it may read, by List.Number
	Revoked        bool
	Suspended      bool                  // its workspace is
	Scheduled      bool                  // it will be revoked, or its workspace suspended, at a moment that no change announces
	ExpiresAt      int64                 // microseconds since 1970; 0 = never
	StartedAt      unique.Handle[string] // when the server that it was read from was started, by its own clock
	ID             uuid.UUID
	Limit          Limit
	WorkspaceLimit Limit
	Quota          Quota // of its workspace
	Label          Label
}

// Label is how people recognise a key.
type Label struct{ Prefix, Name string }

// May says whether the key has the scope of the list.
func (k *Key) May(l *list.List) bool {
	return k.Scopes&(1<<l.Number) != 0
}

// Valid says whether the key is neither revoked nor expired at that moment.
func (k *Key) Valid(now time.Time) bool {
	return !k.Revoked && (k.ExpiresAt == 0 || now.UnixMicro() < k.ExpiresAt)
}

// TenantSQL selects the tenant of a row of workspaces: without one, its id. The table's constraint has the
// bound of list.MaxTenant: in a table that lacks it, a longer tenant is the empty one, which no row has.
const TenantSQL = `CASE WHEN tenant IS NULL THEN id::text WHEN octet_length(tenant) <= 255 THEN tenant ELSE '' END`

// Quota is how many requests a workspace may make in each period. The zero Quota is
// none.
type Quota struct {
	Requests int64  `json:"requests"`
	Period   Period `json:"period"`
}

// QuotaSQL selects the quota of a row of workspaces as UnmarshalText reads it; NULL = none. The
// table's constraint has the same bounds: a table that lacks it may have what is no quota.
const QuotaSQL = `CASE WHEN quota BETWEEN 1 AND 4000000000 AND quota_period IN ('day', 'month') THEN quota || '/' || quota_period END`

// MaxQuota is the most requests of a quota: a bucket holds no more.
const MaxQuota = 4_000_000_000

// Period is the name of a calendar period in UTC; empty = none.
type Period string

// The periods of quotas.
const (
	Day   Period = "day"
	Month Period = "month"
)

// noQuota is how commands write the zero Quota.
const noQuota = "none"

// UnmarshalText reads a quota as commands have it: 1000000/month, or none.
func (q *Quota) UnmarshalText(text []byte) error {
	number, name, _ := strings.Cut(string(text), "/")
	n, err := strconv.ParseUint(number, 10, 63)
	switch period := Period(name); {
	case string(text) == noQuota:
		*q = Quota{}
	case err == nil && n >= 1 && n <= MaxQuota && (period == Day || period == Month):
		*q = Quota{Requests: int64(n), Period: period}
	default:
		return fmt.Errorf("%q is not N/day or N/month, with N from 1 to %d, or %s", text, MaxQuota, noQuota)
	}
	return nil
}

// Bounds returns the name of the period that contains a moment, its begin and its end.
func (p Period) Bounds(now time.Time) (name string, begin, end time.Time) {
	year, month, day := now.UTC().Date()
	if p == Day {
		begin = time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
		return begin.Format(time.DateOnly), begin, begin.AddDate(0, 0, 1)
	}
	begin = time.Date(year, month, 1, 0, 0, 0, 0, time.UTC)
	return begin.Format("2006-01"), begin, begin.AddDate(0, 1, 0)
}
