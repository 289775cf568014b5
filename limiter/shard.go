package limiter

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

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

	mu       sync.Mutex // guards all below; taken after a bucket's
	queue    []account
	inFlight int             // pipelines in flight
	idle     sync.Cond       // signalled when no pipeline is in flight
	failures int             // failed pipelines in a row
	downAt   int64           // when it last went down, in microseconds
	downFor  int64           // sum of its past outages, in microseconds
	failure  error           // the last error
	silence  error           // why the last heartbeat failed; nil = it did not
	nodes    int64           // as last counted; 0 = not yet
	closing  context.Context // of close, while held tokens are given back; nil before

	// Only the goroutine of beat uses these.
	counts  [4]int64      // of nodes, the latest first
	missing int64         // nodes, at the latest count
	contact int64         // when the last heartbeat with the state present was sent, in microseconds
	ahead   int64         // Redis' clock is ahead of this node's by at most so much; lease.Forever = unknown
	stop    chan struct{} // closed when the node leaves
}

// newShard makes the shard of that index in the store, and begins its heartbeats.
func newShard(l *Limiter, index int) *shard {
	s := &shard{l: l, index: index, link: lease.Link{Budget: l.budget}, contact: l.now(), ahead: lease.Forever, stop: make(chan struct{})}
	s.waitingSince.Store(math.MaxInt64)
	s.idle.L = &s.mu
	if s.publish(); l.store != nil {
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

// enqueue queues calls to the accounts. The caller has called markPending for each.
func (s *shard) enqueue(accounts ...account) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, accounts...)
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
	now := s.l.now()
	var calls []call
	for _, a := range batch {
		h := a.base()
		h.mu.Lock()
		var c call
		if giveBack || !s.refuses() {
			c = a.begin(now, giveBack)
		}
		if c != nil {
			calls = append(calls, c)
		} else {
			endCall(a, now, everyWaiter)
		}
		h.mu.Unlock()
	}
	if len(calls) > 0 {
		s.waitingSince.CompareAndSwap(math.MaxInt64, now)
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		s.l.counts.trips.Add(1)
		s.l.counts.calls.Add(uint64(len(calls)))
		errs := s.l.store.execute(ctx, calls)
		s.recordAnswer(errs, now)
		for i, c := range calls {
			c.complete(errs[i], now)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inFlight--; s.inFlight == 0 { // an error is an answer, too: the next call may go at once
		s.waitingSince.Store(math.MaxInt64)
		s.idle.Broadcast()
	}
	s.startSend()
}

// recordAnswer records the answer to a pipeline. It takes the shard down if need be, when no call
// of the pipeline was answered.
func (s *shard) recordAnswer(errs []error, sent int64) {
	now, c := s.l.now(), &s.l.counts
	late := now - sent
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(errs, nil) {
		s.failures = 0
		if s.inFlight > 0 {
			s.waitingSince.Store(now)
		}
		s.answeredAt.Store(now)
		if s.link.Record(late); late > s.link.Budget {
			c.timeouts.Add(1)
		}
		return
	}
	if s.failure = errs[0]; isTimeout(s.failure) {
		c.timeouts.Add(1)
	} else {
		c.errors.Add(1)
	}
	if s.failures++; (s.failures >= maxFailures || late >= callTimeout.Microseconds()) && !s.down.Load() {
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
	s.l.active.each(func(a account) { owes = owes || a.base().shard == s && a.owes() })
	s.hasDebts.Store(owes)
	return owes
}

// close calls each active account for the last time and gives back the tokens that are held,
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
	held := map[account]int64{}
	count := func(a account) {
		if a.base().shard == s {
			held[a] = a.holds(s.l.now())
		}
	}
	s.l.active.each(count)
	s.l.quotas.each(func(q *Counter) {
		if q.number > 0 { // Redis has counted this run, which ends
			count(q)
		}
	})
	s.mu.Lock()
	s.closing = ctx
	s.queue = slices.SortedFunc(maps.Keys(held), func(a, b account) int { return cmp.Compare(held[b], held[a]) })
	s.startSend()
	drained()
	s.mu.Unlock()
	close(s.stop)
}

const (
	heartbeatInterval = 500 * time.Millisecond

	// silentFor is how long after its last heartbeat a node counts as missing. The other
	// nodes learn that with their own next heartbeat: at the latest lease.MissingAfter
	// after the missing node's last one.
	silentFor = 1100 * time.Millisecond

	// staleAfter is for how long a shard may be silent until all other nodes may be missing.
	staleAfter = 2 * heartbeatInterval

	// coldNodes is the least number of nodes that a node assumes until it has counted
	// several times: other nodes may have started at the same time, and Redis may have
	// failed, or have refused writes, before they were counted.
	coldNodes = 8
)

// The states that a heartbeat reports of its node.
const (
	present = "present"
	// recovering: the node gets no answers, or has not sent all debts of an outage. The
	// other nodes go on withholding its part of the rate.
	recovering = "recovering"
	leaving    = "leaving"
)

// heartbeatScript records the time of a node's heartbeat (ARGV[1]), and returns how many
// nodes there are, how many of them are missing, and Redis' time. It records none that is
// executed after ARGV[3], by Redis' time: a network or a Redis that hung may bring it while
// its node is cut off and uses its part. It writes in every state, so that it fails on a
// Redis that accepts no writes. A node is forgotten a minute after its last heartbeat, and
// if that is a minute in the future: its time would never pass. A key of another type is
// damaged, and is written anew. Durations are in microseconds.
var heartbeatScript = newScript(strings.NewReplacer(
	"MEMBER_LIFE", strconv.FormatInt(lease.MemberLife, 10),
	"SILENT_FOR", strconv.FormatInt(silentFor.Microseconds(), 10),
).Replace(`

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function before(span) return string.format('%.0f', now - span) end
local size = redis.pcall('ZCARD', KEYS[1])
if type(size) == 'table' and string.find(size.err, 'WRONGTYPE', 1, true) then
  redis.call('DEL', KEYS[1])
end
if ARGV[2] == 'present' and now <= tonumber(ARGV[3]) then
  redis.call('ZADD', KEYS[1], before(0), ARGV[1])
elseif ARGV[2] == 'leaving' then
  redis.call('ZREM', KEYS[1], ARGV[1])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', before(MEMBER_LIFE))
redis.call('ZREMRANGEBYSCORE', KEYS[1], before(-MEMBER_LIFE), '+inf')
redis.call('PEXPIRE', KEYS[1], MEMBER_LIFE / 1000)
return { redis.call('ZCARD', KEYS[1]), redis.call('ZCOUNT', KEYS[1], '-inf', before(SILENT_FOR)), now }
`))

// beat is a heartbeat to a shard, and the answer: how many nodes there are, how many of them are
// missing, and the shard's time. If it arrives after until, by the shard's clock, it does not
// report its node present.
type beat struct {
	shard *shard
	state string
	until int64

	nodes, missing, now int64
}

func (b *beat) request() (script, string, []any) {
	return heartbeatScript, membersKey(b.shard.index), []any{b.shard.l.id, b.state, b.until}
}

func (b *beat) read(n []int64) { b.nodes, b.missing, b.now = n[0], n[1], n[2] }

// A shard counts the nodes that share its buckets. While the shard is down, a node spends
// only its own part of each bucket's rate. While other nodes may be cut off from the shard, it
// withholds their parts. A heartbeat that is answered shows that a shard is up.

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
	if s.silence != nil || s.unreachable(s.link.Wait()) || s.owesDebts() {
		return recovering
	}
	return present
}

// heartbeat sends a heartbeat. It is not retried, because the next one comes soon.
func (s *shard) heartbeat(state string) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	sent := s.l.now()
	if state == present {
		s.contact = sent
		s.publish()
	}
	b := &beat{shard: s, state: state, until: sent + s.ahead + callTimeout.Microseconds()}
	b.complete(s.l.store.execute(ctx, []call{b})[0], sent)
}

// complete uses the counts of the answer.
func (b *beat) complete(err error, sent int64) {
	s := b.shard
	s.ahead += heartbeatInterval.Microseconds() / 100 // the clocks drift apart, by a percent at most
	arrived := err == nil && b.state != leaving
	if arrived {
		now := s.l.now()
		s.answeredAt.Store(now)
		s.ahead = b.now - sent
		s.link.Record(now - sent) // so that the duration of a round trip is known before the first request
		copy(s.counts[1:], s.counts[:])
		s.counts[0], s.missing = b.nodes, b.missing
	}
	s.publish()
	s.mu.Lock()
	s.silence, s.nodes = err, slices.Max(s.counts[:])
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

// publish updates what requests see of the fleet. The number of nodes is the largest of the
// last few counts, because a Redis that has come back empty counts only the nodes that have
// sent a heartbeat since. If the shard has answered neither heartbeat nor call for a while, all
// other nodes are assumed to be missing. While calls are answered, the latest count is used
// however old it is: otherwise each node would withhold the parts of all others.
func (s *shard) publish() {
	f := &lease.Fleet{Nodes: slices.Max(s.counts[:]), Missing: s.missing, Contact: s.contact, Ahead: s.ahead, Link: &s.link}
	if f.Cold = s.counts[len(s.counts)-1] == 0; f.Cold {
		f.Nodes = max(f.Nodes, coldNodes)
	} else if s.l.now()-s.answeredAt.Load() > staleAfter.Microseconds() {
		f.Missing = f.Nodes - 1
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
	all.Failure = cmp.Or(s.silence, all.Failure)
}
