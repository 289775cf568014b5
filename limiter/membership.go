package limiter

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/limiter/lease"
)

const (
	beatEvery = 500 * time.Millisecond

	// silentFor is how long after its last heartbeat a node is missing. The others
	// learn that with their next one: lease.MissingAfter at the latest.
	silentFor = 1100 * time.Millisecond

	// staleAfter is how old a count may be that says who is missing.
	staleAfter = 2 * beatEvery

	// coldNodes is the least number of nodes that a node reckons with until it has
	// counted for a while: the others may have started with it, and Redis may have
	// died before they were seen, or refuse to be written to.
	coldNodes = 8
)

// What a heartbeat says of its node.
const (
	present = "present"
	// It gets no answers, or has not sent all debts of that time: what the others
	// withhold for it stays withheld.
	recovering = "recovering"
	leaving    = "leaving"
)

// beatScript notes when a node (ARGV[1]) lived last, and answers how many nodes
// there are and how many of them are missing. It writes in any case: a Redis that
// only reads is away. Members are forgotten a minute after their last heartbeat.
// Spans are microseconds.
var beatScript = strings.NewReplacer(
	"MEMBER_LIFE", strconv.FormatInt(lease.MemberLife, 10),
	"SILENT_FOR", strconv.FormatInt(silentFor.Microseconds(), 10),
).Replace(`
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function before(span) return string.format('%.0f', now - span) end
if ARGV[2] == 'present' then
  redis.call('ZADD', KEYS[1], before(0), ARGV[1])
elseif ARGV[2] == 'leaving' then
  redis.call('ZREM', KEYS[1], ARGV[1])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', before(MEMBER_LIFE))
redis.call('PEXPIRE', KEYS[1], MEMBER_LIFE / 1000)
return { redis.call('ZCARD', KEYS[1]), redis.call('ZCOUNT', KEYS[1], '-inf', before(SILENT_FOR)) }
`)

var beat = redis.NewScript(beatScript)

// beat carries the script out.
func (r *redisStore) beat(ctx context.Context, shard int, id, state string) (nodes, missing int64, err error) {
	n, err := beat.Run(ctx, r.client, []string{membersKey(shard)}, id, state).Int64Slice()
	r.answered.CompareAndSwap(false, err == nil)
	if err == nil && len(n) != 2 {
		err = fmt.Errorf("script answered %d values", len(n))
	}
	if err != nil {
		return 0, 0, fmt.Errorf("send a heartbeat: %w", err)
	}
	return n[0], n[1], nil
}

// LiveNodes is how many nodes beat in a Redis, as its own clock has it.
func LiveNodes(ctx context.Context, client redis.UniversalClient) (int64, error) {
	now, err := client.Time(ctx).Result()
	if err != nil {
		return 0, fmt.Errorf("ask Redis for its time: %w", err)
	}
	n, err := client.ZCount(ctx, membersKey(0), strconv.FormatInt(now.Add(-2*silentFor).UnixMicro(), 10), "+inf").Result()
	if err != nil {
		return 0, fmt.Errorf("count the nodes: %w", err)
	}
	return n, nil
}

// membership knows the nodes that share a shard's buckets: so that each knows its
// part of them while the shard is down, and withholds the part of those that may be
// cut off. Its heartbeats find out that the shard is back.
type membership struct {
	shard *shard
	index int
	node  int64 // this one, as buckets know it

	fleet  atomic.Pointer[lease.Fleet]
	nodes  atomic.Int64          // as last counted; 0 = not yet
	failed atomic.Pointer[error] // why the last heartbeat did, or nil
	stop   chan struct{}

	// The goroutine's own.
	counts     [4]int64 // the latest first
	missing    int64
	counted    int64 // when; microseconds
	contact    int64 // when the last heartbeat was sent that says present
	unanswered bool  // the last heartbeat is
	timeouts   int   // heartbeats in a row
}

func newMembership(s *shard, index int) *membership {
	m := &membership{shard: s, index: index, node: 1 + rand.Int64N(1<<50), contact: s.d.l.now(), stop: make(chan struct{})}
	m.publish()
	return m
}

func (m *membership) run() {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		state := m.state()
		m.beat(state)
		if state == recovering && m.state() == present {
			m.beat(present)
		}
		select {
		case <-tick.C:
		case <-m.stop:
			m.beat(leaving)
			return
		}
	}
}

// state is what the next heartbeat says. One that is not answered may have arrived:
// if it says present, the others spend this node's part of the rate from then on. So
// that is said only once without an answer.
func (m *membership) state() string {
	if m.unanswered || m.shard.unreachable() || m.shard.owesDebts() {
		return recovering
	}
	return present
}

// beat says that this node lives, and counts. A lost one needs no second try: the
// next one is soon.
func (m *membership) beat(state string) {
	d := m.shard.d
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	sent := d.l.now()
	if state == present {
		m.contact = sent
		m.publish()
	}
	nodes, missing, err := d.store.beat(ctx, m.index, d.id, state)
	if err != nil && isTimeout(err) {
		m.timeouts++
	} else {
		m.timeouts = 0
	}
	if m.timeouts != 1 { // a single one says nothing
		m.failed.Store(&err)
	}
	m.unanswered = err != nil
	arrived := err == nil && state != leaving
	if arrived {
		m.counted = d.l.now()
		m.shard.link.Record(m.counted - sent) // so the first requests know what a round trip takes
		copy(m.counts[1:], m.counts[:])
		m.counts[0], m.missing = nodes, missing
	}
	m.publish()
	if arrived {
		m.shard.recovered()
		if m.fleet.Load().Cold {
			d.findShards()
		}
	}
}

// publish renews what this node knows of its fleet. A Redis that has come back
// empty counts anew, and the first to ask is alone: so the last few counts are
// remembered. A count that is old says nothing of who is missing; but while calls are
// answered, the last one stays: otherwise every node would withhold the parts of all.
func (m *membership) publish() {
	f := &lease.Fleet{Nodes: slices.Max(m.counts[:]), Missing: m.missing, Node: m.node, Contact: m.contact, Link: &m.shard.link}
	m.nodes.Store(f.Nodes)
	if f.Cold = m.counts[len(m.counts)-1] == 0; f.Cold {
		f.Nodes = max(f.Nodes, coldNodes)
	} else if m.shard.d.l.now()-max(m.counted, m.shard.answeredAt.Load()) > staleAfter.Microseconds() {
		f.Missing = f.Nodes - 1
	}
	m.fleet.Store(f)
}
