package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/edge/admin"
)

// The roster is a hash in Redis in which each node of a fleet writes its state, so that the
// status page of any node shows all nodes.

const (
	rosterEvery = 5 * time.Second // how often a node writes its entry
	// rosterSilence: a node that has written nothing for so long has ended; after rosterLife
	// the others remove what it wrote.
	rosterSilence = 3 * rosterEvery
	rosterLife    = time.Minute
	rosterTimeout = 250 * time.Millisecond
	// rosterReads: after so many writes a node reads the whole roster.
	rosterReads = 4
)

// rosterKey is the key of the roster of the fleet whose keys in Redis have the prefix.
func rosterKey(prefix string) string { return prefix + "{changes}:nodes" }

// rosterEntry is what a node writes about itself into Redis.
type rosterEntry struct {
	admin.NodeState
	Seen  int64  `json:"seen"`            // when it was written: Unix milliseconds of Redis' clock
	Fleet string `json:"fleet,omitempty"` // the identity of the database whose changes it follows, as a digest
}

// enroll writes this node's entry into the roster every rosterEvery until ctx ends, and then
// removes it. Failures are not reported: checks say that Redis is away, and a missing entry
// harms nothing.
func (n *Node) enroll(ctx context.Context) {
	key := rosterKey(n.followed.Prefix())
	own, writes := rand.Text(), 0 // own is the field of this node in the hash
	repeat(ctx, rosterEvery, func(ctx context.Context) {
		n.writeEntry(ctx, key, own)
		if writes%rosterReads == 0 {
			n.fleet(ctx) // remembers it, and removes old entries
		}
		writes++
	})
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), rosterTimeout)
	defer cancel()
	_ = n.redis.log.HDel(last, key, own).Err()
}

// name is what tells this node from others: --node-id, or else the machine's name with the port
// of the admin listener. A node that is started again has the same name.
func (n *Node) name() string {
	if n.options.NodeID != "" {
		return n.options.NodeID
	}
	host, _ := os.Hostname()
	_, port, _ := net.SplitHostPort(n.options.Private.Addr().String())
	return net.JoinHostPort(host, port)
}

// writeEntry writes this node's state into the field own of the roster, in two round trips.
func (n *Node) writeEntry(ctx context.Context, key, own string) {
	ctx, cancel := context.WithTimeout(ctx, rosterTimeout)
	defer cancel()
	now, err := n.redis.log.Time(ctx).Result()
	if err != nil {
		return
	}
	text, _ := json.Marshal(rosterEntry{n.state(), now.UnixMilli(), n.followed.Digest()})
	_, err = n.redis.log.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.HSet(ctx, key, own, text)
		p.PExpire(ctx, key, rosterLife)
		return nil
	})
	if redis.HasErrorPrefix(err, "WRONGTYPE") { // damaged: the next write makes it anew
		_ = n.redis.log.Del(ctx, key).Err()
	}
}

// readRoster returns the entries of nodes that are not older than oldest, sorted by name, the
// youngest of a name first, and the fields of all others. One as far in the future is another:
// Redis' clock has gone back, and the entry of a node that has ended would never be old.
func readRoster(ctx context.Context, client redis.UniversalClient, prefix string, oldest time.Duration) (entries []rosterEntry, others []string, err error) {
	var now *redis.TimeCmd
	var all *redis.MapStringStringCmd
	_, err = client.Pipelined(ctx, func(p redis.Pipeliner) error {
		now, all = p.Time(ctx), p.HGetAll(ctx, rosterKey(prefix))
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read the nodes' states: %w", err)
	}
	for field, text := range all.Val() {
		var e rosterEntry
		err := json.Unmarshal([]byte(text), &e)
		if age := now.Val().Sub(time.UnixMilli(e.Seen)); err == nil && age.Abs() <= oldest {
			e.Age = max(0, age.Seconds())
			entries = append(entries, e)
		} else {
			others = append(others, field)
		}
	}
	slices.SortFunc(entries, func(a, b rosterEntry) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Age, b.Age)) })
	return entries, others, nil
}
