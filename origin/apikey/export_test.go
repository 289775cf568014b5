package apikey

import "github.com/google/uuid"

// What tests of the exports need of the others: bounds, and what a request finds without a look-up.
const (
	MaxAge         = maxAge
	RecentAge      = recentAge
	RefreshEvery   = refreshEvery
	RecentTimeout  = recentTimeout
	WaitPause      = waitPause
	LookupTimeout  = lookupTimeout
	IdleTTL        = idleTTL
	IdleScan       = idleScan
	RequestTimeout = requestTimeout
	LookupBatch    = lookupBatch
	LookupBacklog  = lookupBacklog
	KeyPrefix      = keyPrefix
	KeyRandom      = keyRandom
	Base62         = base62
)

var (
	KeyChecksum = keyChecksum
	ErrNotAsked = errNotAsked
)

// Valid returns the key's entry if a request may rely on it without a look-up, else nil.
func (c *Cache[T]) Valid(hash Hash) *Entry[T] { return c.valid(c.clock.Now(), hash) }

// Find returns the key's entry; nil = none.
func (c *Cache[T]) Find(hash Hash) *Entry[T] { return c.find(hash) }

// Rows returns how many rows have entries.
func (c *Cache[T]) Rows() int { return len(c.rows) }

// EntriesOf returns how many entries depend on the row.
func (c *Cache[T]) EntriesOf(row uuid.UUID) int { return len(c.rows[row]) }
