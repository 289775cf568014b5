package origin

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"listedge/internal/boottime"
)

// ErrUnknownKey: there is no such key.
var ErrUnknownKey = errors.New("unknown key")

// How old a look-up may be that an answer relies on.
const (
	// keyFresh: while Postgres answers in time, no answer relies on a look-up
	// that began longer ago, so a revocation reaches every node within it.
	keyFresh = time.Second
	// keyRefresh is how often the keys in use are looked up again, where changes
	// are not told; far enough below keyFresh that requests never wait for it.
	keyRefresh = keyFresh * 2 / 5
	// keyReview is how often they are where changes are told, shard by shard:
	// nothing relies on it, but no mistake should last.
	keyReview = 2 * time.Minute
	// keyPatience is how long a request waits for a look-up before it goes on
	// with what was known, where that was looked up within keyRecent. For a key
	// that was not, it waits as long as it can: its last look-up may be minutes
	// old, and the key revoked since.
	keyPatience = 200 * time.Millisecond
	keyRecent   = 5 * keyFresh
	// keyPause is how long nobody waits after a wait that was in vain.
	keyPause = time.Second
	// unknownFresh is how long a key stays unknown without asking again.
	unknownFresh = 10 * time.Second
	// keyIdle is how long an unused key is remembered.
	keyIdle = 10 * time.Minute

	lookupDeadline = time.Second // a hung server is found out, and left alone, within keyRecent
	unknownKeys    = 16_384      // remembered at most
)

// KeyLookup returns those of the keys that exist, as the primary has them that
// was started at run; empty = that is not known (KeyStore.Lookup).
type KeyLookup func(ctx context.Context, hashes []KeyHash, run string) (map[KeyHash]Key, error)

// Keyring is what one node knows of the keys it has seen, each with a T that
// the caller makes of it once and finds again on every request.
//
//	Known ── fresh ──────────────────────────► T          no lock, no allocation
//	Load ─── lookupQueue ─── one query of ANY ─► T | ErrUnknownKey | ErrUnavailable
//	every keyRefresh: the keys used since the last time, in as few queries,
//	                  unless changes are told (keyring_told.go)
//
// Invariants: what Known returns was right less than keyFresh ago: when it was
// looked up, or when it was last proven that any change since would have been
// told. What Load returns was looked up after it was called, or was right less
// than keyRecent ago while Postgres is slow, or less than grace ago while it
// cannot be asked.
type Keyring[T any] struct {
	lookup KeyLookup
	attach func(k Key, before, made *T) // before is what it was made into, nil for a new key
	grace  time.Duration
	clock  *boottime.Clock // moments are its

	seed    maphash.Seed // of places
	near    atomic.Pointer[nearKeys[T]]
	shards  [64]keyShard[T]
	size    atomic.Int64 // keys in the shards
	unknown *lru.Cache[KeyHash, time.Time]

	mu     sync.Mutex
	queue  lookupQueue
	asking bool // the one asker runs
	closed bool
	pace   *rate.Limiter // of queries that asked for keys in vain

	pausedUntil atomic.Int64 // a moment; until then known keys do not wait
	wrongServer atomic.Bool  // another server than the primary has answered, and the primary not since
	told        told

	stop context.CancelFunc
	done sync.WaitGroup
	ctx  context.Context // ends with Close

	hits, loaded, queries, unknowns, failures, graced atomic.Uint64
}

// keyShard has the keys by the beginnings of their hashes. Of two keys that begin
// alike, which nobody can make, the one that was looked up later is known.
type keyShard[T any] struct {
	mu    sync.RWMutex
	known map[uint64]*KnownKey[T] // guarded by mu
}

// at returns what is known of the key, or nil. The shard is locked.
func (s *keyShard[T]) at(hash KeyHash) *KnownKey[T] {
	if k := s.known[hash.beginning()]; k != nil && k.hash == hash {
		return k
	}
	return nil
}

// KnownKey is what the keyring knows of a key. Key and Value stay as they are:
// of a key that has changed there is another one.
type KnownKey[T any] struct {
	hash KeyHash

	// Moments, in nanoseconds of the keyring's clock. Written under the
	// shard's lock.
	checked atomic.Int64 // as of when it is known to be right: when the last look-up began, at least
	doubted atomic.Int64 // when a change was last told that may concern it

	place atomic.Uint64 // KeyPlace, once it is found there
	used  atomic.Bool   // since the shard was last swept

	Value T
	Key   Key

	lastUsed time.Duration // as of the last sweep; the refresher's own
}

// supersede has nobody find the key any more, nor rely on it who kept it.
// Whatever the keyring forgets must be superseded: changes are not told of it.
// The shard is locked.
func (r *Keyring[T]) supersede(k *KnownKey[T]) {
	k.checked.Store(never)
	r.near.Load().drop(k)
}

// NewKeyring starts a keyring. attach is called once for every key and every
// change of one. grace bounds how long known keys go on without Postgres.
func NewKeyring[T any](lookup KeyLookup, attach func(k Key, before, made *T), grace time.Duration, c *boottime.Clock) *Keyring[T] {
	unknown, err := lru.New[KeyHash, time.Time](unknownKeys)
	if err != nil {
		panic("BUG: " + err.Error()) // only for a size below 1
	}
	r := &Keyring[T]{lookup: lookup, attach: attach, grace: grace, clock: c, seed: maphash.MakeSeed(), unknown: unknown,
		queue: lookupQueue{calls: map[KeyHash]*lookupCall{}}, pace: rate.NewLimiter(vainPerSecond, vainBurst)}
	r.told.init()
	r.near.Store(newNearKeys[T](nearLines))
	for i := range r.shards {
		r.shards[i].known = map[uint64]*KnownKey[T]{}
	}
	r.ctx, r.stop = context.WithCancel(context.Background())
	r.done.Add(1)
	go r.refresh()
	return r
}

// Close ends look-ups under way and waits for them.
func (r *Keyring[T]) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.stop()
	r.done.Wait()
}

// Known returns the key if this node has looked it up recently enough, else nil.
func (r *Keyring[T]) Known(hash KeyHash, place KeyPlace, now time.Time) *KnownKey[T] {
	k := r.near.Load().at(place, hash)
	if k == nil {
		k = r.bringNear(hash, place)
	}
	if r.StillKnown(k, now) {
		return k
	}
	return nil
}

// StillKnown says whether what Known or Load returned may be relied on once
// more: a caller that kept it is spared the look-up by hash. False of nil.
func (r *Keyring[T]) StillKnown(k *KnownKey[T], now time.Time) bool {
	if k == nil {
		return false
	}
	if asOf, doubtful := r.asOf(k); doubtful || r.clock.At(now)-asOf > keyFresh {
		return false
	}
	if !k.used.Load() {
		k.used.Store(true)
	}
	r.hits.Add(1)
	return true
}

// Load looks the key up and waits, at most until ctx ends.
// Errors: ErrUnknownKey, or ErrUnavailable and its kin when Postgres cannot be
// asked and the key is not known well enough from before.
func (r *Keyring[T]) Load(ctx context.Context, hash KeyHash) (*KnownKey[T], error) {
	return r.load(ctx, hash, ordinary)
}

// LoadSuspect is Load for a client of whose keys too many were unknown. Its
// look-ups take their turn behind those of others.
func (r *Keyring[T]) LoadSuspect(ctx context.Context, hash KeyHash) (*KnownKey[T], error) {
	return r.load(ctx, hash, suspect)
}

func (r *Keyring[T]) load(ctx context.Context, hash KeyHash, priority lookupPriority) (*KnownKey[T], error) {
	before, asking := r.find(hash), ctx
	if before == nil {
		if until, ok := r.unknown.Get(hash); ok && time.Now().Before(until) {
			r.unknowns.Add(1)
			return nil, ErrUnknownKey
		}
	} else {
		priority = known
		before.used.Store(true) // an outage may outlast keyIdle
		if r.graces(before, min(keyRecent, r.grace)) {
			if r.clock.Now() < time.Duration(r.pausedUntil.Load()) {
				r.graced.Add(1)
				return before, nil
			}
			var cancel context.CancelFunc
			asking, cancel = context.WithTimeout(ctx, keyPatience)
			defer cancel()
		}
	}
	err := r.ask(asking, hash, priority)
	k := r.find(hash)
	switch {
	case err == nil && k != nil:
		k.used.Store(true)
		r.loaded.Add(1)
		return k, nil
	case err == nil || errors.Is(err, ErrUnknownKey):
		r.unknowns.Add(1)
		return nil, ErrUnknownKey
	case before != nil && r.graces(before, r.grace):
		// Not where it was the caller who left, nor for other keys' crowding.
		if !errors.Is(ctx.Err(), context.Canceled) && !errors.Is(err, ErrOverloaded) {
			r.pausedUntil.Store(int64(r.clock.Now() + keyPause))
		}
		r.graced.Add(1)
		return before, nil
	}
	r.failures.Add(1)
	return nil, err
}

// graces says whether the key may go on without a look-up: it was right less
// than d ago. While another server answers in the primary's place, a key that
// was changed since does not: Postgres is there, and keys are being revoked.
func (r *Keyring[T]) graces(k *KnownKey[T], d time.Duration) bool {
	asOf, doubtful := r.asOf(k)
	return r.clock.Now()-asOf < d && !(doubtful && r.wrongServer.Load())
}

func (r *Keyring[T]) shard(hash KeyHash) *keyShard[T] {
	return &r.shards[hash[0]%uint8(len(r.shards))]
}

func (r *Keyring[T]) find(hash KeyHash) *KnownKey[T] {
	s := r.shard(hash)
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.at(hash)
}

// bringNear is find for a key that is looked for by its place from now on.
func (r *Keyring[T]) bringNear(hash KeyHash, place KeyPlace) *KnownKey[T] {
	s := r.shard(hash)
	s.mu.RLock()
	defer s.mu.RUnlock()
	k := s.at(hash)
	if k != nil {
		k.place.Store(uint64(place))
		r.putNear(k)
	}
	return k
}

// KeyringStats is a snapshot for metrics.
type KeyringStats struct {
	Hits     uint64 // answered from memory
	Loaded   uint64 // answered after a look-up
	Queries  uint64 // to Postgres
	Unknown  uint64 // requests with a key that does not exist
	Failures uint64 // requests that could not be answered
	Graced   uint64 // requests answered from an old look-up, Postgres being away
	Known    int    // keys remembered
}

// Stats returns the counts since the start and the present size.
func (r *Keyring[T]) Stats() KeyringStats {
	return KeyringStats{Hits: r.hits.Load(), Loaded: r.loaded.Load(), Queries: r.queries.Load(),
		Unknown: r.unknowns.Load(), Failures: r.failures.Load(), Graced: r.graced.Load(), Known: int(r.size.Load())}
}
