package limiter

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"listedge/limiter/lease"
)

// share is what all accounts have.
type share struct {
	key string

	mu      sync.Mutex // guards all below
	shard   *shard     // has the account
	active  bool       // in Limiter.active
	pending bool       // queued for a call, or the call is in flight

	waiters []chan reply // requests that wait for Redis, in their order
}

// reply is how a waiting request is decided, and when; NeedRemote = without Redis.
type reply struct {
	outcome lease.Outcome
	at      int64
}

func (h *share) base() *share { return h }

// requestCall queues a call for which no request need wait, unless the account has a call already
// or its shard is down. The account's mu is held.
func requestCall(a account) {
	if h := a.base(); !h.pending && !h.shard.refuses() {
		h.markPending()
		h.shard.enqueue(a)
	}
}

// markPending marks an account for a call, which the caller queues at the account's shard.
// It looks the shard up, because the Cluster may have moved the slot. mu is held.
func (h *share) markPending() { h.pending, h.shard = true, h.shard.l.shardOf(h.key) }

func (h *share) patience() int64 { return h.shard.link.Wait() }

// everyWaiter lets endCall reply to all waiting requests.
const everyWaiter = true

// endCall ends a call, and replies to the waiting requests that the account can decide now; the others
// wait for the next call. With all, it also replies to them: they are decided without Redis.
// The account's mu is held.
func endCall(a account, now int64, all bool) {
	h := a.base()
	h.pending = false
	for len(h.waiters) > 0 {
		outcome := a.retry(now)
		if outcome == lease.NeedRemote && !all {
			if requestCall(a); h.pending {
				return
			}
		}
		h.waiters[0] <- reply{outcome, now}
		h.waiters = h.waiters[1:]
	}
	h.waiters = nil
}

// Bucket is a handle on one bucket: its key, its policy and this node's part of
// it. Keep it with what is limited, and use it from any number of goroutines.
type Bucket struct {
	blocked atomic.Bool // its rate is 0
	share               // its mu guards all below
	lease   lease.Lease
}

// KeyBucket names the bucket of an API key. The braces are a Redis Cluster hash
// tag: all buckets of a request are on one shard.
func KeyBucket(workspace, key string) string { return "{" + workspace + "}:b:" + key }

// WorkspaceBucket names the bucket that all keys of a workspace share.
func WorkspaceBucket(workspace string) string { return "{" + workspace + "}:b" }

// Policy returns the policy that is in force at this node.
func (b *Bucket) Policy() lease.Policy {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lease.Policy
}

func (b *Bucket) take(now int64) lease.Outcome {
	outcome := b.lease.Take(now)
	if b.lease.Due(now) { // before a request has to wait
		requestCall(b)
	}
	return outcome
}

// takeAlone decides by the failure mode.
func (b *Bucket) takeAlone(now, _ int64) (lease.Outcome, Status) {
	l, f := b.shard.l, b.shard.fleet()
	ok, retry := false, heartbeatInterval.Microseconds()
	if l.mode != FailDeny {
		ok, retry = b.lease.TakeFallback(now, f, l.mode == FailAllow)
		l.active.add(b)
	}
	if !ok {
		return lease.Denied, lease.Refused(retry)
	}
	return lease.Granted, b.lease.FallbackStatus(now, f)
}

// refund takes a token back into the lease, or else sends it to the bucket: at once if the
// bucket is not leased from, otherwise with the next call.
func (b *Bucket) refund(now int64, alone bool) {
	if b.lease.Refund(now, alone) {
		b.shard.l.active.add(b)
		if !b.lease.Policy.Leased() {
			requestCall(b)
		}
	}
}

func (b *Bucket) status(now, _ int64, outcome lease.Outcome) Status {
	switch {
	case outcome == lease.Denied:
		return lease.Refused(b.lease.RetryIn(now))
	case b.shard.refuses():
		return b.lease.FallbackStatus(now, b.shard.fleet())
	}
	return b.lease.Status(now)
}

func (b *Bucket) retry(now int64) lease.Outcome { return b.lease.Retry(now) }
func (b *Bucket) denies(now int64) bool         { return b.lease.Denies(now) }
func (b *Bucket) isActive() bool                { return b.lease.IsActive() }
func (b *Bucket) holds(now int64) int64         { return b.lease.Holds(now) }
func (b *Bucket) owes() bool                    { return b.lease.Owes() }
func (b *Bucket) sweep(now int64) bool          { return b.lease.Sweep(now, b.shard.fleet()) }

func (b *Bucket) begin(now int64, giveBack bool) call {
	v, need := &bucketCall{bucket: b}, int64(len(b.waiters))
	f := b.shard.fleet()
	if !b.lease.Begin(&v.Call, need, now, f, giveBack) {
		return nil
	}
	v.Until = now + f.Ahead + callTimeout.Microseconds()
	return v
}

// bucketCall is one call to a bucket.
type bucketCall struct {
	bucket *Bucket
	lease.Call
}

func (v *bucketCall) request() (script, string, []any) {
	return tokenBucketScript, v.bucket.key, []any{arguments(&v.Call)}
}

func (v *bucketCall) read(n []int64) {
	v.Reply = lease.Reply{Granted: n[0], Leased: n[1], Level: n[2], Wait: n[3], Slice: n[4], Lasts: n[5], Held: n[6], Demand: n[7]}
}

func (v *bucketCall) complete(err error, sent int64) {
	b := v.bucket
	now := b.shard.l.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.lease.Fail(&v.Call)
		endCall(b, now, everyWaiter)
		return
	}
	b.lease.Complete(&v.Call, sent, now, b.shard.fleet())
	b.shard.l.counts.leased.Add(uint64(v.Leased))
	b.shard.l.active.add(b)
	if endCall(b, now, !everyWaiter); b.lease.Due(now) {
		requestCall(b)
	}
}

// registry has the handle of each bucket that anybody uses. With two handles, each would
// spend the node's part of the bucket while Redis is unreachable. The pointers are weak: a handle
// that nobody keeps, and that is not active and has no call, is freed, because a new one would
// be the same.
type registry struct {
	mu      sync.Mutex // guards all below; taken before a bucket's
	buckets map[string]weak.Pointer[Bucket]
	sweepAt int // number of buckets at which to forget those that nobody uses; it keeps the cost of sweeping at O(1) for each new bucket
}

const sweepFrom = 1024

// get returns the key's handle. If there is none, it registers the one that make returns.
func (r *registry) get(key string, make func() *Bucket) *Bucket {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.buckets[key].Value()
	if b == nil {
		if len(r.buckets) >= r.sweepAt {
			maps.DeleteFunc(r.buckets, func(_ string, b weak.Pointer[Bucket]) bool { return b.Value() == nil })
			r.sweepAt = max(sweepFrom, 2*len(r.buckets))
		}
		b = make()
		r.buckets[key] = weak.Make(b)
	}
	return b
}

// activeAccounts are those that hold tokens or have a debt. While there are any,
// they are swept every sweepEvery; less often where that takes more than a fiftieth of the time.
type activeAccounts struct {
	l *Limiter

	mu       sync.Mutex // guards all below; taken after a bucket's
	accounts map[account]struct{}
	sweeping bool // a sweep runs, or a timer will begin one
}

const (
	sweepEvery = 100 * time.Millisecond
	maxSwept   = 64 // calls that a sweep requests at most, so that they do not delay requests
)

// add adds an account, if it has to be swept. Its mu is held.
func (a *activeAccounts) add(x account) {
	if x.base().active || !x.isActive() {
		return
	}
	x.base().active = true
	a.mu.Lock()
	defer a.mu.Unlock()
	a.accounts[x] = struct{}{}
	if !a.sweeping {
		a.sweeping = true
		time.AfterFunc(sweepEvery, a.sweep)
	}
}

// each calls do for each account, with its mu held.
func (a *activeAccounts) each(do func(x account)) {
	a.mu.Lock()
	all := slices.Collect(maps.Keys(a.accounts))
	a.mu.Unlock()
	for _, x := range all {
		x.base().mu.Lock()
		do(x)
		x.base().mu.Unlock()
	}
}

// sweep gives back what is idle and sends debts. Then it removes the accounts that hold
// nothing and have no debt.
func (a *activeAccounts) sweep() {
	if a.l.closed.Load() {
		return
	}
	now, calls, began := a.l.now(), 0, time.Now()
	a.each(func(x account) {
		if x.sweep(now) && calls < maxSwept {
			requestCall(x)
			calls++
		}
		if x.base().active = x.isActive(); !x.base().active {
			a.mu.Lock()
			delete(a.accounts, x)
			a.mu.Unlock()
		}
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sweeping = len(a.accounts) > 0; a.sweeping {
		time.AfterFunc(max(sweepEvery, 50*time.Since(began)), a.sweep)
	} else {
		a.accounts = make(map[account]struct{}) // the old one keeps its memory
	}
}
