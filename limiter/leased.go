package limiter

import (
	"context"
	"slices"
	"time"

	"listedge/limiter/lease"
)

// part is the part of a decision that one account makes. If there is no such account, it is
// Granted.
type part struct {
	account
	outcome lease.Outcome
	status  Status
	alone   bool       // this node decides without Redis
	replies chan reply // the request waits here for Redis' answer; nil = it does not wait
	until   int64      // it waits no longer
}

// request is one request to decide.
type request struct {
	l     *Limiter
	parts [3]part // of the accounts in the order of Which
	ahead int64   // the wall clock is so many microseconds ahead of this node's time
	free  bool    // it takes no token, and nothing refuses it
}

// decide takes a token from each account, or none from any.
func (r *request) decide(now int64) Decision {
	d := Decision{Allowed: true, Source: SourceLease}
	remote, refused := false, false
	for i := range r.parts {
		p := &r.parts[i]
		if p.outcome = lease.Granted; p.account != nil {
			r.take(p, now, refused)
			remote = remote || p.outcome == lease.NeedRemote
			refused = refused || p.outcome == lease.Denied
		}
	}
	if remote && !refused {
		r.decideRemote()
		now = r.l.now()
		refused = slices.ContainsFunc(r.parts[:], func(p part) bool { return p.outcome == lease.Denied })
	}
	for i := range r.parts {
		p := &r.parts[i]
		if p.account == nil {
			continue
		}
		if refused && p.outcome == lease.Granted { // the refusal of another account makes the token useless
			p.base().mu.Lock()
			p.refund(now, p.alone)
			p.base().mu.Unlock()
			p.status.Remaining++
		}
		switch {
		case p.alone:
			d.Source = r.l.alone
		case p.replies != nil && d.Source == SourceLease:
			d.Source = SourceRedis
		}
		d.add(Which(i+1), p.status)
	}
	return d
}

// take lets one account decide at once: this node has a token of it, or knows that there is none, or
// Redis is down. If another account has refused the request, it takes no token: the outcome is
// NeedRemote or Denied.
func (r *request) take(p *part, now int64, refused bool) {
	h := p.base()
	h.mu.Lock()
	defer h.mu.Unlock()
	p.outcome = lease.NeedRemote
	switch {
	case r.free:
		p.outcome = lease.Granted
	case !refused:
		p.outcome = p.account.take(now)
	case p.denies(now):
		p.outcome = lease.Denied
	}
	p.alone = (r.free || p.outcome == lease.NeedRemote) && h.shard.refuses()
	if p.alone && !r.free && !refused {
		p.outcome, p.status = p.takeAlone(now, r.ahead)
	} else {
		p.status = p.account.status(now, r.ahead, p.outcome)
	}
}

// decideRemote decides the parts that need Redis, while no account refuses the request.
func (r *request) decideRemote() {
	calls := make([]account, 0, len(r.parts)) // to one shard: see KeyBucket
	for i := range r.parts {
		if p := &r.parts[i]; p.outcome == lease.NeedRemote && r.startWaiting(p) {
			calls = append(calls, p.account)
		}
	}
	if len(calls) > 0 {
		calls[0].base().shard.enqueue(calls...)
	}
	for i := range slices.Backward(r.parts[:]) { // a quota may be waited for longer than a bucket
		if p := &r.parts[i]; p.outcome == lease.NeedRemote {
			r.await(p)
		}
	}
}

// startWaiting tries once more to decide here. If Redis is still needed, the request waits for the
// account, unless the shard is unreachable. startWaiting reports whether it has marked the account
// for a call.
func (r *request) startWaiting(p *part) (marked bool) {
	h := p.base()
	h.mu.Lock()
	defer h.mu.Unlock()
	now := r.l.now()
	if p.outcome = p.account.retry(now); p.outcome != lease.NeedRemote {
		p.status = p.account.status(now, r.ahead, p.outcome)
		return false
	}
	if h.shard.unreachable(p.patience()) {
		return false
	}
	p.until, p.replies = now+p.patience(), make(chan reply, 1)
	h.waiters = append(h.waiters, p.replies)
	if h.pending {
		return false
	}
	h.markPending()
	return true
}

// await decides a part by Redis' answer, or without Redis if none comes in time.
func (r *request) await(p *part) {
	h, got := p.base(), reply{}
	if p.replies != nil {
		select {
		case got = <-p.replies:
		case <-time.After(time.Duration(p.until-r.l.now()) * time.Microsecond):
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := slices.Index(h.waiters, p.replies); i >= 0 {
		h.waiters = slices.Delete(h.waiters, i, i+1)
	}
	select {
	case got = <-p.replies: // it came at that moment
	default:
	}
	if p.outcome = got.outcome; p.outcome == lease.NeedRemote {
		p.alone = true
		p.outcome, p.status = p.takeAlone(r.l.now(), r.ahead)
	} else {
		p.status = p.account.status(got.at, r.ahead, p.outcome)
	}
}

// refuses reports whether no new calls are made: the shard is down or closed.
func (s *shard) refuses() bool { return s.down.Load() || s.l.closed.Load() }

// Close waits for the calls in flight, gives back what this node holds, sends its debts, leaves
// the fleet, and ends the limiter's goroutines. No more calls, sweeps and shards begin. If ctx
// ends first, it gives no more back, and waits only for calls in flight, which callTimeout
// bounds. A Take after Close is decided by the fallback.
func (l *Limiter) Close(ctx context.Context) error {
	l.mu.Lock()
	before := l.closed.Swap(true)
	l.mu.Unlock()
	if before {
		return nil
	}
	for _, s := range l.allShards() {
		l.running.Go(func() { s.close(ctx) })
	}
	l.running.Wait()
	return ctx.Err()
}

// shardOf returns the shard that has a key. After close there are no new ones.
func (l *Limiter) shardOf(key string) *shard {
	index := uint8(0)
	if l.store != nil {
		index = l.store.shardOf(key)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.shards[index] != nil:
	case l.closed.Load():
		index = 0
	default:
		l.shards[index] = newShard(l, int(index))
	}
	return l.shards[index]
}

func (l *Limiter) allShards() []*shard {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.shards[:]), func(s *shard) bool { return s == nil })
}
