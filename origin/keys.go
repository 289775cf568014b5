package origin

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"
	"math"
	"time"

	"github.com/google/uuid"
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
	l := Limit{Set: true, Rate: *rate, Burst: int64(min(max(1, 2**rate), math.MaxInt32))} // as the column bounds it
	if burst != nil {
		l.Burst = int64(*burst)
	}
	return l
}

// century is in seconds.
const century = 100 * 365 * 24 * 3600

// Enforceable is the limit as a bucket can hold it: one that would take longer
// than a century to fill has the burst that a century fills, and one that gets no
// token in all that time is blocked. It never admits more than the limit does.
func (l Limit) Enforceable() Limit {
	switch most := l.Rate * century; {
	case most < 1:
		l.Rate = 0
	case most < float64(l.Burst):
		l.Burst = int64(most)
	}
	return l
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
