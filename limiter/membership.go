package limiter

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"listedge/limiter/lease"
)

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
