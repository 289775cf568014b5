package origin

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"listedge/internal/changefeed"
)

// never is a moment before all others, and after subtraction still is.
const never = math.MinInt64 / 2

// told is what is known from the log of changes: a key that was looked up while
// proofs follow each other is valid up to the latest of them, unless a change has
// invalidated it.
//
//	Changed, Settled ── the keys it may concern are looked up before the next use
//	ValidThrough ────── all others that were looked up after since are valid at until
//
// Why that is enough. When until is proven, each change that became visible
// between since and until, on the server that was started at run, has been
// given to Settled (changefeed.Listener). (What another server said, an old
// primary that lives on, is right as of when it did.) Let a key be looked up
// after since, and let a change become visible after that look-up and until
// until. It settled after the look-up had begun, which invalidates the key, or
// the answer of the look-up under way (before).
type told struct {
	proof atomic.Pointer[proof] // nil = nothing is proven
	last  atomic.Int64          // when a change was last told

	index keyIndex
}

// proof is of the changes between two moments of one server.
type proof struct {
	since, until time.Duration
	run          string // when it was started; empty = a follower of an old version does not say
}

// about says whether the proof is about what was looked up then of that server.
func (p *proof) about(lookedUp time.Duration, run string) bool {
	return p != nil && lookedUp > p.since && (p.run == "" || p.run == run)
}

func (t *told) init() {
	t.last.Store(never)
	t.index.hashes = map[uuid.UUID][]KeyHash{}
}

// before is what must be doubted of a key that was not known here and whose
// look-up began at that moment. The index must name the key by now: then a
// change of it is either seen here or finds the key there.
func (t *told) before(at time.Duration) (doubted int64) {
	if last := t.last.Load(); last >= int64(at) {
		return last
	}
	return never
}

// recently says whether it was proven of late, so that no key in use grows old
// before the next refresh.
func (t *told) recently(now time.Duration) bool {
	p := t.proof.Load()
	return p != nil && now-p.until <= keyRefresh
}

// one returns the proof's own text where it says the same: to compare a key's
// with it on each request then touches neither.
func (t *told) one(run string) string {
	if p := t.proof.Load(); p != nil && p.run == run {
		return p.run
	}
	return run
}

// run is when the followed server was started, while that is proven: an older proof
// must not refuse the answers of the primary after a restart.
func (t *told) run(now time.Duration) string {
	if p := t.proof.Load(); p != nil && now-p.until < keyFresh {
		return p.run
	}
	return ""
}

// asOf is the moment as of which the key is known to be right, and whether it
// must be looked up in spite of it. The order matters: what is proven is read
// before what is doubted, which is written before it is proven.
func (r *Keyring[T]) asOf(k *KnownKey[T]) (at time.Duration, doubtful bool) {
	proven := r.told.proof.Load()
	at = time.Duration(k.checked.Load())
	doubtful = at <= time.Duration(k.doubted.Load())
	if !doubtful && !k.Key.Scheduled && proven.about(at, k.Key.Run) {
		at = max(at, proven.until)
	}
	return at, doubtful
}

// doubt has the key looked up before anything relies on it. Until that can be
// done it is as right as it was. The shard is locked.
func (r *Keyring[T]) doubt(k *KnownKey[T], at time.Duration) {
	asOf, _ := r.asOf(k)
	k.doubted.Store(int64(at))
	k.checked.Store(int64(asOf))
}

// Changed implements changefeed.Listener.
func (r *Keyring[T]) Changed(_ changefeed.Position, c *changefeed.Change) { r.Settled(c) }

// Settled implements changefeed.Listener: who looked the key up since the change
// was published may have seen the old row.
func (r *Keyring[T]) Settled(c *changefeed.Change) {
	if c.Touches(changefeed.Keys) {
		r.doubtAll()
		return
	}
	var ids []uuid.UUID
	for _, l := range c.Lists {
		if l.Collection == changefeed.Keys {
			ids = append(ids, l.Workspace)
		}
	}
	if ids != nil {
		r.doubtThose(ids)
	}
}

// doubtThose has the keys doubted that rows with these IDs concern.
func (r *Keyring[T]) doubtThose(ids []uuid.UUID) {
	now := r.clock.Now()
	r.told.last.Store(int64(now))
	for _, hash := range r.told.index.of(ids) {
		s := r.shard(hash)
		s.mu.Lock()
		if k := s.at(hash); k != nil {
			r.doubt(k, now)
		}
		s.mu.Unlock()
	}
}

// doubtAll is for a change of which is not known what it concerns.
func (r *Keyring[T]) doubtAll() {
	now := r.clock.Now()
	r.told.last.Store(int64(now))
	r.each(func(k *KnownKey[T]) { r.doubt(k, now) })
}

// ValidThrough implements changefeed.Listener. The first proof since a Reset is
// of the changes since it was read: what was not visible then is published
// behind its heartbeat, or is named unsettled by it.
func (r *Keyring[T]) ValidThrough(p changefeed.Proof) {
	is := &proof{since: r.clock.Now(), until: r.clock.Of(p.Moment), run: r.told.one(p.Run)}
	if was := r.told.proof.Load(); was != nil {
		is.since = was.since
	}
	r.told.proof.Store(is)
}

// Reset implements changefeed.Listener. Keys stay as right as they were.
func (r *Keyring[T]) Reset(string, changefeed.ResetCause) {
	r.each(func(k *KnownKey[T]) {
		asOf, _ := r.asOf(k)
		k.checked.Store(int64(asOf))
	})
	r.told.proof.Store(nil)
}

func (r *Keyring[T]) each(do func(*KnownKey[T])) {
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		for _, k := range s.known {
			do(k)
		}
		s.mu.Unlock()
	}
}

// keyIndex finds the known keys that a row concerns: a key's own, or its
// workspace's.
type keyIndex struct {
	mu     sync.Mutex
	hashes map[uuid.UUID][]KeyHash // guarded by mu
}

// swap lets the key is take the place of the key was; nil = none.
func (x *keyIndex) swap(hash KeyHash, was, is *Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if was != nil {
		for _, id := range [...]uuid.UUID{was.ID, was.Workspace} {
			rest := slices.DeleteFunc(x.hashes[id], func(h KeyHash) bool { return h == hash })
			if x.hashes[id] = rest; len(rest) == 0 {
				delete(x.hashes, id)
			}
		}
	}
	if is != nil {
		for _, id := range [...]uuid.UUID{is.ID, is.Workspace} {
			x.hashes[id] = append(x.hashes[id], hash)
		}
	}
}

// of returns the keys that rows with these IDs concern.
func (x *keyIndex) of(ids []uuid.UUID) (hashes []KeyHash) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, id := range ids {
		hashes = append(hashes, x.hashes[id]...)
	}
	return hashes
}
