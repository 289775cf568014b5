package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/edge/admin"
	"listedge/internal/fleet"
)

const (
	rosterEvery = 5 * time.Second // how often a node writes its entry
	// rosterLife: a node that has written nothing for so long has ended, and the others remove what it wrote.
	rosterLife    = time.Minute
	rosterTimeout = 250 * time.Millisecond
	// rosterReads: after so many writes a node reads the whole roster, or after as many as it has nodes: so a fleet of any size
	// reads it about once in rosterEvery.
	rosterReads = 4
)

// rosterEntry is what a node writes about itself into Redis.
type rosterEntry struct {
	admin.NodeState
	Seen  int64  `json:"seen"`            // when it was written: Unix milliseconds of Redis' clock
	Fleet string `json:"fleet,omitempty"` // the identity of the database whose changes it follows, as a digest
}

// roster is a hash in Redis in which each node of a fleet writes its state, so that the status page
// of any node shows all nodes.
type roster struct {
	redis    redis.UniversalClient
	followed *fleet.Followed
	state    func() admin.NodeState // of this node

	known atomic.Pointer[knownFleet] // the fleet's nodes, as last read; nil = not yet
}

// knownFleet is what the roster said when it was read.
type knownFleet struct {
	nodes []admin.NodeState
	at    time.Time
}

func (r *roster) key() string { return r.followed.LogPrefix() + "nodes" }

// run writes this node's entry every rosterEvery until ctx ends, and then removes it. Failures are
// not reported: checks say that Redis is away, and a missing entry harms nothing.
func (r *roster) run(ctx context.Context) {
	own, until := rand.Text(), 0 // the field of this node in the hash, and how many writes until it reads
	repeat(ctx, rosterEvery, func(ctx context.Context) {
		r.write(ctx, own)
		if until == 0 {
			until = max(rosterReads, len(r.nodes(ctx))) // remembers them, and removes old entries
		}
		until--
	})
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), rosterTimeout)
	defer cancel()
	_ = r.redis.HDel(last, r.key(), own).Err()
}

// write writes this node's state into the field own, in two round trips.
func (r *roster) write(ctx context.Context, own string) {
	ctx, cancel := context.WithTimeout(ctx, rosterTimeout)
	defer cancel()
	now, err := r.redis.Time(ctx).Result()
	if err != nil {
		return
	}
	text, _ := json.Marshal(rosterEntry{r.state(), now.UnixMilli(), r.followed.Digest()})
	_, err = r.redis.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.HSet(ctx, r.key(), own, text)
		p.PExpire(ctx, r.key(), rosterLife)
		return nil
	})
	if redis.HasErrorPrefix(err, "WRONGTYPE") { // damaged: the next write makes it anew
		_ = r.redis.Del(ctx, r.key()).Err()
	}
}

// read returns the entries of nodes that are not older than rosterLife, sorted by name, the youngest of
// a name first, and the fields of all others. One as far in the future is another: Redis' clock has
// gone back, and the entry of a node that has ended would never be old.
func (r *roster) read(ctx context.Context) (entries []rosterEntry, others []string, err error) {
	var now *redis.TimeCmd
	var all *redis.MapStringStringCmd
	_, err = r.redis.Pipelined(ctx, func(p redis.Pipeliner) error {
		now, all = p.Time(ctx), p.HGetAll(ctx, r.key())
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read the nodes' states: %w", err)
	}
	for field, text := range all.Val() {
		var e rosterEntry
		err := json.Unmarshal([]byte(text), &e)
		if age := now.Val().Sub(time.UnixMilli(e.Seen)); err == nil && age.Abs() <= rosterLife {
			e.Age = max(0, age.Seconds())
			entries = append(entries, e)
		} else {
			others = append(others, field)
		}
	}
	slices.SortFunc(entries, func(a, b rosterEntry) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Age, b.Age)) })
	return entries, others, nil
}

// nodes returns the states that the nodes of the same database wrote last, by their names. While
// Redis does not answer, they are those that it said last, and older.
func (r *roster) nodes(ctx context.Context) []admin.NodeState {
	ctx, cancel := context.WithTimeout(ctx, rosterTimeout)
	defer cancel()
	now := time.Now()
	entries, old, err := r.read(ctx)
	if err != nil {
		known := r.known.Load()
		if known == nil {
			return nil
		}
		nodes := slices.Clone(known.nodes)
		for i := range nodes {
			nodes[i].Age += now.Sub(known.at).Seconds()
		}
		return nodes
	}
	if len(old) > 0 { // nodes that ended without removing theirs
		_ = r.redis.HDel(ctx, r.key(), old...).Err()
	}
	var nodes []admin.NodeState
	for _, e := range entries {
		if e.Fleet == r.followed.Digest() {
			nodes = append(nodes, e.NodeState)
		}
	}
	// A node that was killed and started again has two entries, the younger first.
	nodes = slices.CompactFunc(nodes, func(a, b admin.NodeState) bool { return a.Name == b.Name })
	r.known.Store(&knownFleet{nodes, now})
	return nodes
}
