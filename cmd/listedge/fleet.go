package main

import (
	"context"
	"net"
	"os"
	"slices"

	"github.com/google/uuid"

	"listedge/cache"
	"listedge/edge/admin"
	"listedge/origin/apikey"
)

// shownKeys is how many of the busiest keys the status page lists.
const shownKeys = 10

// nodeName tells nodes of one machine apart by their admin ports.
func (n *node) nodeName() string {
	machine, err := os.Hostname()
	if err != nil {
		machine = "node"
	}
	_, port, _ := net.SplitHostPort(n.private.Addr().String())
	return machine + ":" + port
}

// state is what this node says of itself.
func (n *node) state() admin.NodeState {
	s := admin.NodeState{Name: n.nodeName(), Version: version, Revision: builtFrom(), Started: n.started, Database: n.followed.Digest(),
		Ready: n.health.Ready(), Mode: n.cache.Mode().String(), Down: []string{}}
	s.Last, _ = n.history.Latest()
	s.Follower = n.follower != nil && n.follower.Stats().Following
	for _, d := range n.watched.States() {
		if d.Checked && !d.Up {
			s.Down = append(s.Down, d.Name)
		}
	}
	return s
}

// reading is what a point of the history is made of.
func (n *node) reading() admin.Reading {
	r := admin.Reading{Totals: n.metrics.Edge.Totals(), ProofAge: -1}
	if n.cache.Mode() != cache.ModeTTL {
		r.ProofAge = n.cache.ProofAge()
	}
	return r
}

// fleet reads the states of all nodes of this database.
func (n *node) fleet(ctx context.Context) (all []admin.NodeState) {
	all, err := readRoster(ctx, n.redis.log)
	if err != nil {
		return nil // that Redis is away is shown elsewhere on the page
	}
	digest := n.followed.Digest()
	return slices.DeleteFunc(all, func(s admin.NodeState) bool { return s.Database != digest })
}

// busiestKeys are the keys with the most requests, with their names if Postgres tells
// them.
func (n *node) busiestKeys(ctx context.Context, keys *apikey.Store) []admin.KeyState {
	uses := n.server.BusiestKeys(shownKeys)
	ids := make([]uuid.UUID, len(uses))
	for i, use := range uses {
		ids[i] = use.Key
	}
	labels := keys.Labels(ctx, ids)
	all := make([]admin.KeyState, len(uses))
	for i, use := range uses {
		l := labels[use.Key]
		all[i] = admin.KeyState{ID: use.Key.String(), Prefix: l.Prefix, Name: l.Name, Workspace: use.Workspace.String(), Requests: use.Requests, Refused: use.Refused}
	}
	return all
}
