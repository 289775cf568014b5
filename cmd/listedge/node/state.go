package node

import (
	"context"
	"slices"
	"time"

	"listedge/cache"
	"listedge/edge/admin"
)

// state returns the state of this node for the status pages of all nodes.
func (n *Node) state() admin.NodeState {
	s := admin.NodeState{Name: n.name(), Version: n.options.Version, Revision: n.options.Revision, Started: n.started,
		Ready: n.health.Ready(), Mode: n.Cache.Mode().String(), Down: []string{}, Counts: n.metrics.Edge.Totals()}
	if n.Cache.Mode() != cache.ModeTTL {
		s.Proof = new(n.Cache.ProofAge().Seconds())
	}
	s.Follower = n.follower != nil && n.follower.Stats().Following
	for _, c := range n.health.States() {
		if c.Light && c.Checked && !c.Up {
			s.Down = append(s.Down, c.Name)
		}
	}
	s.Nodes = n.limiter.Stats().Nodes
	if n.feed != nil {
		s.Epoch = n.feed.Stats().Epoch
	}
	return s
}

// knownFleet is what the roster in Redis said when it was last read.
type knownFleet struct {
	nodes []admin.NodeState
	at    time.Time
}

// fleet returns the states that the nodes of the same database wrote last, by their names. While
// Redis does not answer, they are those that it said last, and older.
func (n *Node) fleet(ctx context.Context) []admin.NodeState {
	ctx, cancel := context.WithTimeout(ctx, rosterTimeout)
	defer cancel()
	read := knownFleet{at: time.Now()}
	if entries, old, err := readRoster(ctx, n.redis.log, n.followed.Prefix(), rosterLife); err == nil {
		if len(old) > 0 { // nodes that ended without removing theirs
			_ = n.redis.log.HDel(ctx, rosterKey(n.followed.Prefix()), old...).Err()
		}
		for _, e := range entries {
			if e.Fleet == n.followed.Digest() {
				read.nodes = append(read.nodes, e.NodeState)
			}
		}
		// A node that was killed and started again has two entries, the younger first.
		read.nodes = slices.CompactFunc(read.nodes, func(a, b admin.NodeState) bool { return a.Name == b.Name })
		n.known.Store(&read)
	} else if known := n.known.Load(); known != nil {
		read.nodes = slices.Clone(known.nodes)
		for i := range read.nodes {
			read.nodes[i].Age += read.at.Sub(known.at).Seconds()
		}
	}
	return read.nodes
}

// busiestKeys returns the keys with the most requests in the last seconds, the busiest first.
func (n *Node) busiestKeys() []admin.KeyState {
	uses := n.usage.Stats().Busiest
	all := make([]admin.KeyState, len(uses))
	for i, use := range uses {
		l := n.server.Keys.Label(use.ID)
		all[i] = admin.KeyState{ID: use.ID.String(), Prefix: l.Prefix, Name: l.Name, Workspace: use.Workspace.String(), Requests: use.Requests, Refused: use.Refused}
	}
	return all
}
