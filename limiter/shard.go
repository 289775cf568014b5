package limiter

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"listedge/limiter/lease"
)

// The bounds of calls to Redis, and when a shard counts as down.
const (
	// callTimeout ends a pipeline without an answer and takes the shard down at once. A
	// request waits for less than that, so a shorter delay affects only the requests
	// that wait.
	callTimeout = 250 * time.Millisecond

	// A shard is down after maxFailures failed pipelines in a row, or after one that got
	// no answer within callTimeout. No request waits for it until a heartbeat is
	// answered.
	maxFailures = 3

	// A pipeline has at most maxCalls, which take Redis about a millisecond. At most
	// maxPipelines are in flight.
	maxCalls     = 32
	maxPipelines = 8
)

// limit is a bucket or a quota of the fleet, of which this node spends a part.
type limit struct {
	law law
	key string

	mu      sync.Mutex    // guards all below, and what the law knows
	shard   *shard        // has the limit
	active  bool          // in Limiter.active
	pending bool          // queued for a call, or the call is in flight
	unknown bool          // the law refuses until Redis has answered once: a request waits longer for that
	blocked atomic.Bool   // a bucket of rate 0; mu does not guard it
	waiters []chan answer // requests that wait for Redis, in their order
}

// answer is how a waiting request is decided; NeedRemote = without Redis.
type answer struct {
	outcome lease.Outcome
	status  Status
}

// law is how a limit counts: as a token bucket (Bucket) or as a quota (Counter). The limit's mu is held.
type law interface {
	// decide decides one request, and returns what a response says about the limit.
	decide(now moment, how manner) (lease.Outcome, Status)
	// refund takes a token back that decide took, offline or not.
	refund(now int64, offline bool)
	// begin makes the next call; nil = none is needed. With giveBack, it returns what is held.
	begin(now int64, giveBack bool) *call
	// inspect returns what this node has of the limit, and forgets what is over.
	inspect(now int64) lease.Holdings
}

// manner is how a law decides a request.
type manner uint8

const (
	take        manner = iota // takes a token, by what is known here
	retry                     // does so for a request that take has counted already
	takeOffline               // takes a token without Redis
	look                      // takes none: the outcome is NeedRemote or Denied
)

// requestCall queues a call for which no request need wait, unless the limit has a call already
// or its shard is down. mu is held, as for all methods below but begin and complete.
func (h *limit) requestCall() {
	if !h.pending && !h.shard.refuses() {
		h.markPending()
		h.shard.enqueue(h)
	}
}

// markPending marks a limit for a call, which the caller queues at the limit's shard.
// It looks the shard up, because the Cluster may have moved the slot.
func (h *limit) markPending() { h.pending, h.shard = true, h.shard.l.shardOf(h.key) }

// patience is for how long a request waits for Redis.
func (h *limit) patience() int64 {
	if h.unknown {
		return lease.MaxWait
	}
	return h.shard.link.Wait()
}

// begin makes the next call. If there is none, the waiting requests are decided without Redis.
func (h *limit) begin(now moment, giveBack bool) (c *call) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if giveBack || !h.shard.refuses() {
		c = h.law.begin(now.at, giveBack)
	}
	if c == nil {
		h.endCall(nil, now)
	}
	return c
}

// complete applies the answer to a call.
func (h *limit) complete(c *call) {
	l := h.shard.l
	h.mu.Lock()
	defer h.mu.Unlock()
	now := l.moment(time.Now())
	c.apply(c.answer, now.at)
	l.active.add(h, now.at)
	h.endCall(c, now)
}

// endCall ends a call, and answers the waiting requests that the law can decide now. If the call was
// answered, the others wait for the next one. If it was not, or was not made (nil), they are decided
// without Redis.
func (h *limit) endCall(c *call, now moment) {
	h.pending = false
	for len(h.waiters) > 0 {
		outcome, status := h.law.decide(now, retry)
		if outcome == lease.NeedRemote && c != nil && (c.err == nil || h.unknown) {
			h.requestCall()
			if h.pending {
				return
			}
		}
		h.waiters[0] <- answer{outcome, status}
		h.waiters = h.waiters[1:]
	}
	h.waiters = nil
}

// shard is one Redis server that has buckets and quotas: the only one, or a master of a Cluster.
// It sends the calls to them in pipelines and knows whether the server is down.
// Calls that are queued while maxPipelines are in flight go into the next one. Each server
// has its own shard, so a server that hangs does not delay the buckets of others.
//
//	enqueue ──> queue ──> begin ══ store.execute ══> complete
type shard struct {
	l     *Limiter
	index int // its number in the store
	link  lease.Link
	known atomic.Pointer[lease.Fleet]

	down     atomic.Bool
	hasDebts atomic.Bool // it was down, and debts of that time may not have been debited yet

	waitingSince atomic.Int64 // since when there is no answer to a call in flight; MaxInt64 = no call is in flight
	answeredAt   atomic.Int64 // when a pipeline or a heartbeat was last answered

	mu           sync.Mutex // guards all below; taken after a bucket's
	queue        []*limit
	inFlight     int             // pipelines in flight
	idle         sync.Cond       // signalled when no pipeline is in flight
	failures     int             // failed pipelines in a row
	downAt       int64           // when it last went down, in microseconds
	downFor      int64           // sum of its past outages, in microseconds
	failure      error           // the last error
	heartbeatErr error           // why the last heartbeat failed; nil = it did not
	nodes        int64           // as last counted; 0 = not yet
	closing      context.Context // of close, while held tokens are given back; nil before

	// Only the goroutine of beat uses these.
	counts        [4]int64      // of nodes, the latest first
	silent        int64         // the share that silent nodes may be using, as of the latest count
	lastPresentAt int64         // when the last heartbeat with the state present was sent, in microseconds
	ahead         int64         // Redis' clock is ahead of this node's by at most so much; lease.Forever = unknown
	stop          chan struct{} // closed when the node leaves
}

// newShard makes the shard of that index in the store, and begins its heartbeats.
func newShard(l *Limiter, index int) *shard {
	s := &shard{l: l, index: index, link: lease.Link{Budget: l.budget}, lastPresentAt: l.now(), ahead: lease.Forever, stop: make(chan struct{})}
	s.waitingSince.Store(math.MaxInt64)
	s.idle.L = &s.mu
	s.publish()
	if l.store != nil {
		l.running.Go(s.beat)
	} else {
		s.down.Store(true)
		s.known.Store(&lease.Fleet{Nodes: 1, Ahead: lease.Forever, Link: &s.link})
	}
	return s
}

// fleet is what this node knows about the nodes that share the buckets.
func (s *shard) fleet() *lease.Fleet { return s.known.Load() }

// refuses reports whether no new calls are made: the shard is down or closed.
func (s *shard) refuses() bool { return s.down.Load() || s.l.closed.Load() }

// unreachable reports whether no request should wait for the shard as long as wait: it is down, or
// has not answered for so long.
func (s *shard) unreachable(wait int64) bool {
	return s.refuses() || s.l.now()-s.waitingSince.Load() >= wait
}

// enqueue queues calls for the limits. The caller has called markPending for each.
func (s *shard) enqueue(limits ...*limit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, limits...)
	s.startSend()
}

// startSend sends the next pipeline, or leaves that to the next answer. s.mu is held.
func (s *shard) startSend() {
	if len(s.queue) > 0 && s.inFlight < maxPipelines {
		s.inFlight++
		go s.send()
	}
}

// send sends one pipeline with the calls that are first in the queue.
func (s *shard) send() {
	s.mu.Lock()
	n := min(len(s.queue), maxCalls)
	batch := slices.Clone(s.queue[:n])
	s.queue = slices.Delete(s.queue, 0, n)
	giveBack := s.closing != nil && s.closing.Err() == nil && !s.down.Load()
	s.startSend()
	s.mu.Unlock()
	now := s.l.moment(time.Now())
	var calls []*call
	for _, h := range batch {
		if c := h.begin(now, giveBack); c != nil {
			calls = append(calls, c)
		}
	}
	if len(calls) > 0 {
		s.waitingSince.CompareAndSwap(math.MaxInt64, now.at)
		s.l.counts.trips.Add(1)
		s.l.counts.calls.Add(uint64(len(calls)))
		s.l.store.execute(calls)
		s.recordAnswer(calls, now.at)
		for _, c := range calls {
			c.limit.complete(c)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight--
	if s.inFlight == 0 { // an error is an answer, too: the next call may go at once
		s.waitingSince.Store(math.MaxInt64)
		s.idle.Broadcast()
	}
	s.startSend()
}

// recordAnswer records the answer to a pipeline. It takes the shard down if need be, when no call
// of the pipeline was answered.
func (s *shard) recordAnswer(calls []*call, sent int64) {
	now, c := s.l.now(), &s.l.counts
	late := now - sent
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.ContainsFunc(calls, func(c *call) bool { return c.err == nil }) {
		s.failures = 0
		if s.inFlight > 0 {
			s.waitingSince.Store(now)
		}
		s.answeredAt.Store(now)
		s.link.Record(late)
		if late > s.link.Budget {
			c.timeouts.Add(1)
		}
		return
	}
	s.failure = calls[0].err
	if isTimeout(s.failure) {
		c.timeouts.Add(1)
	} else {
		c.errors.Add(1)
	}
	s.failures++
	if (s.failures >= maxFailures || late >= callTimeout.Microseconds()) && !s.down.Load() {
		s.downAt = now
		s.down.Store(true)
		s.hasDebts.Store(true)
	}
}

// recovered takes the shard up again, after a heartbeat was answered.
func (s *shard) recovered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.down.Load() {
		return
	}
	s.downFor += s.l.now() - s.downAt
	s.failures = 0
	s.down.Store(false)
	s.startSend()
}

// owesDebts reports whether debts of an outage have not been debited yet. Meanwhile this
// node does not report itself present. So the others go on withholding its part, and the
// debts are paid from that.
func (s *shard) owesDebts() bool {
	if !s.hasDebts.Load() || s.down.Load() {
		return s.hasDebts.Load()
	}
	owes := false
	s.l.active.each(func(h *limit) { owes = owes || h.shard == s && h.law.inspect(s.l.now()).Owes })
	s.hasDebts.Store(owes)
	return owes
}

// close calls each active limit for the last time and gives back the tokens that are held,
// the most first. It stops giving back when ctx ends or the shard is down. Then the node
// leaves the fleet.
func (s *shard) close(ctx context.Context) {
	drained := func() {
		for s.inFlight > 0 || len(s.queue) > 0 {
			s.idle.Wait()
		}
	}
	s.mu.Lock()
	drained()
	s.mu.Unlock()
	held := map[*limit]int64{}
	count := func(h *limit) {
		if h.shard == s {
			held[h] = h.law.inspect(s.l.now()).Tokens
		}
	}
	s.l.active.each(count)
	s.l.quotas.each(func(q *Counter) {
		if q.number > 0 { // Redis has counted this run, which ends
			count(&q.limit)
		}
	})
	s.mu.Lock()
	s.closing = ctx
	s.queue = slices.SortedFunc(maps.Keys(held), func(a, b *limit) int { return cmp.Compare(held[b], held[a]) })
	s.startSend()
	drained()
	s.mu.Unlock()
	close(s.stop)
}

const (
	heartbeatInterval = 500 * time.Millisecond

	// staleAfter is for how long a shard may be silent until all other nodes may be, too.
	staleAfter = 2 * heartbeatInterval

	// coldNodes is the least number of nodes that a node assumes until it has counted
	// several times: other nodes may have started at the same time, and Redis may have
	// failed, or have refused writes, before they were counted.
	coldNodes = 8
)

// The states that a heartbeat reports of its node.
const (
	present = "present"
	// recovering: the node gets no answers, or has not sent all debts of an outage. It counts as silent:
	// the other nodes go on withholding its part of the rate.
	recovering = "recovering"
	leaving    = "leaving"
)

// A shard counts the nodes that share its buckets. While the shard is down, a node spends
// only its own part of each bucket's rate. While other nodes may be cut off from the shard, it
// withholds their parts: each says with its heartbeats how large its own is. A heartbeat that is answered shows that a shard is up.

// beat sends heartbeats until the node leaves.
func (s *shard) beat() {
	tick := time.NewTicker(heartbeatInterval)
	defer tick.Stop()
	for {
		state := s.state()
		s.heartbeat(state)
		if state == recovering && s.state() == present {
			s.heartbeat(present)
		}
		select {
		case <-tick.C:
		case <-s.stop:
			s.heartbeat(leaving)
			return
		}
	}
}

// state returns the state for the next heartbeat. A heartbeat without an answer may still
// have arrived. If its state is present, the other nodes stop withholding this node's part of
// the rate. So after one without an answer the state is not present.
func (s *shard) state() string {
	if s.heartbeatErr != nil || s.unreachable(s.link.Wait()) || s.owesDebts() {
		return recovering
	}
	return present
}

// heartbeat sends a heartbeat, and uses the answer: how many nodes there are, and which share the silent
// ones may be using. It says by how many nodes this one goes, at least, until the next one is executed:
// also once an answer has moved the oldest count out. It is not retried, because the next one comes soon.
func (s *shard) heartbeat(state string) {
	sent := s.l.now()
	if state == present {
		s.lastPresentAt = sent
		s.publish()
	}
	parts, _ := assumedNodes(s.counts[:len(s.counts)-1])
	c := &call{script: heartbeatScript, key: membersKey(s.index), arguments: []any{s.l.id, state, parts, sent + s.ahead + callTimeout.Microseconds()}}
	s.l.store.execute([]*call{c})
	s.ahead += heartbeatInterval.Microseconds() / 100 // the clocks drift apart, by a percent at most
	arrived := c.err == nil && state != leaving
	if arrived {
		now := s.l.now()
		s.answeredAt.Store(now)
		s.ahead = c.answer[2] - sent
		s.link.Record(now - sent) // so that the duration of a round trip is known before the first request
		copy(s.counts[1:], s.counts[:])
		s.counts[0], s.silent = max(1, c.answer[0]), c.answer[1]
	}
	s.publish()
	s.mu.Lock()
	s.heartbeatErr, s.nodes = c.err, slices.Max(s.counts[:])
	s.mu.Unlock()
	if arrived {
		s.recovered()
		if s.fleet().Cold { // at all masters of a Cluster the other nodes count this one before it needs their buckets
			for i := range maxShards {
				s.l.shardOf(membersKey(i))
			}
		}
	}
}

// assumedNodes is by how many nodes a node goes after these counts, the latest first: by the largest,
// because a Redis that has come back empty counts only the nodes that have sent a heartbeat since.
func assumedNodes(counts []int64) (nodes int64, cold bool) {
	nodes, cold = slices.Max(counts), counts[len(counts)-1] == 0
	if cold {
		nodes = max(nodes, coldNodes)
	}
	return nodes, cold
}

// publish updates what requests see of the fleet. If the shard has answered neither heartbeat nor call for a while, all
// other nodes are assumed to be silent. While calls are answered, the latest count is used
// however old it is: otherwise each node would withhold the parts of all others.
func (s *shard) publish() {
	f := &lease.Fleet{Silent: s.silent, LastPresentAt: s.lastPresentAt, Ahead: s.ahead, Link: &s.link}
	f.Nodes, f.Cold = assumedNodes(s.counts[:])
	if !f.Cold && s.l.now()-s.answeredAt.Load() > staleAfter.Microseconds() {
		f.Silent = lease.Token - lease.Token/f.Nodes
	}
	s.known.Store(f)
}

// stats adds the state of a shard. If there are several, the worst one counts.
func (s *shard) stats(all *Stats, now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all.Nodes = max(all.Nodes, s.nodes)
	degraded := s.downFor
	if s.down.Load() {
		all.BreakerOpen, all.Failure = true, s.failure
		degraded += now - s.downAt
	}
	all.Degraded = max(all.Degraded, time.Duration(degraded)*time.Microsecond)
	all.Failure = cmp.Or(s.heartbeatErr, all.Failure)
}

// buckets has the handle of each bucket that anybody uses. With two handles, each would
// spend the node's part of the bucket while Redis is unreachable. The pointers are weak: a handle
// that nobody keeps, and that is not active and has no call, is freed, because a new one would
// be the same.
type buckets struct {
	mu      sync.Mutex // guards all below; taken before a bucket's
	all     map[string]weak.Pointer[Bucket]
	sweepAt int // number of buckets at which to forget those that nobody uses; it keeps the cost of sweeping at O(1) for each new bucket
}

// activeLimits are those that hold tokens or have a debt. While there are any,
// they are swept every sweepEvery; less often where that takes more than a fiftieth of the time.
type activeLimits struct {
	l *Limiter

	mu       sync.Mutex // guards all below; taken after a bucket's
	limits   map[*limit]struct{}
	sweeping bool // a sweep runs, or a timer will begin one
}

const (
	sweepEvery = 100 * time.Millisecond
	maxSwept   = 64 // calls that a sweep requests at most, so that they do not delay requests
)

// add adds a limit, if it has to be swept. Its mu is held.
func (a *activeLimits) add(h *limit, now int64) {
	if h.active || !h.law.inspect(now).Active {
		return
	}
	h.active = true
	a.mu.Lock()
	defer a.mu.Unlock()
	a.limits[h] = struct{}{}
	if !a.sweeping {
		a.sweeping = true
		time.AfterFunc(sweepEvery, a.sweep)
	}
}

// each calls do for each limit, with its mu held.
func (a *activeLimits) each(do func(h *limit)) {
	a.mu.Lock()
	all := slices.Collect(maps.Keys(a.limits))
	a.mu.Unlock()
	for _, h := range all {
		h.mu.Lock()
		do(h)
		h.mu.Unlock()
	}
}

// stats adds what this node has of the limits.
func (a *activeLimits) stats(s *Stats, now int64) {
	a.each(func(h *limit) {
		has := h.law.inspect(now)
		s.LeasedHeld += max(0, has.Tokens)
		if has.Owes {
			s.Owing++
		}
	})
}

// sweep gives back what is idle and sends debts. Then it removes the limits that hold
// nothing and have no debt.
func (a *activeLimits) sweep() {
	if a.l.closed.Load() {
		return
	}
	now, calls, began := a.l.now(), 0, time.Now()
	a.each(func(h *limit) {
		has := h.law.inspect(now)
		if has.Due && !h.pending && calls < maxSwept {
			h.requestCall()
			calls++
		}
		h.active = has.Active
		if !h.active {
			a.mu.Lock()
			delete(a.limits, h)
			a.mu.Unlock()
		}
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sweeping = len(a.limits) > 0
	if a.sweeping {
		time.AfterFunc(max(sweepEvery, 50*time.Since(began)), a.sweep)
	} else {
		a.limits = make(map[*limit]struct{}) // the old one keeps its memory
	}
}
