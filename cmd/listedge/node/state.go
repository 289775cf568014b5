package node

import (
	"context"

	"github.com/google/uuid"

	"listedge/cache"
	"listedge/edge/admin"
	"listedge/origin/apikey"
)

// state returns the state of this node for the status pages of all nodes.
func (n *Node) state() admin.NodeState {
	s := admin.NodeState{Name: n.name(), Version: n.options.Version, Revision: n.options.Revision, Started: n.started,
		Ready: n.health.Ready(), Mode: n.Cache.Mode().String(), Down: []string{}}
	s.Last, _ = n.history.Latest()
	s.Follower = n.follower != nil && n.follower.Stats().Following
	for _, d := range n.health.Dependencies() {
		if d.Light && d.Checked && !d.Up {
			s.Down = append(s.Down, d.Name)
		}
	}
	return s
}

// reading returns the numbers from which a point of the history is made.
func (n *Node) reading() admin.Reading {
	r := admin.Reading{Totals: n.metrics.Edge.Totals(), ProofAge: -1}
	if n.Cache.Mode() != cache.ModeTTL {
		r.ProofAge = n.Cache.ProofAge()
	}
	return r
}

// fleet returns the states that the nodes of the same database wrote last. Only an open
// status page calls it.
func (n *Node) fleet(ctx context.Context) (all []admin.NodeState) {
	entries, err := ReadRoster(ctx, n.redis.log, n.followed.Prefix())
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if e.Fleet == n.followed.Digest() {
			all = append(all, e.NodeState)
		}
	}
	return all
}

// busiestKeys returns the keys with the most requests. They have names if Postgres
// answers.
func (n *Node) busiestKeys(ctx context.Context, keys *apikey.Store) []admin.KeyState {
	uses := n.usage.Stats().Busiest
	ids := make([]uuid.UUID, len(uses))
	for i, use := range uses {
		ids[i] = use.ID
	}
	labels := keys.Labels(ctx, ids)
	all := make([]admin.KeyState, len(uses))
	for i, use := range uses {
		l := labels[use.ID]
		all[i] = admin.KeyState{ID: use.ID.String(), Prefix: l.Prefix, Name: l.Name, Workspace: use.Workspace.String(), Requests: use.Requests, Refused: use.Refused}
	}
	return all
}
