package main

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"time"

	"github.com/google/uuid"

	"listedge/cache"
	"listedge/edge/admin"
	"listedge/origin/apikey"
)

// Every node writes a short state of itself to Redis, so that the status page of any
// one shows the fleet. Nobody reads it but the page, while it is open.

const (
	publishEvery = 5 * time.Second
	// goneAfter is how old a state may be for its node to count as one of the fleet.
	goneAfter = 4 * publishEvery
	// statesLife is how long Redis keeps the states after the last node has ended.
	statesLife = time.Minute
	// shownKeys is how many of the busiest keys the status page lists.
	shownKeys = 10
)

// statesKey is a hash: a node's name, and its state as JSON. Fleets of other databases
// that share the Redis have their own.
func (n *node) statesKey() string { return "{listedge}:states:" + n.followed.Digest() }

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
	s := admin.NodeState{Name: n.nodeName(), Version: version, Revision: builtFrom(), Started: n.started, At: time.Now(),
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

// publishState writes the state every few seconds until ctx ends, and then removes it.
func (n *node) publishState(ctx context.Context) {
	tick := time.NewTicker(publishEvery)
	defer tick.Stop()
	for {
		text, err := json.Marshal(n.state())
		if err == nil {
			limited, cancel := context.WithTimeout(ctx, time.Second)
			pipe := n.redis.log.Pipeline()
			pipe.HSet(limited, n.statesKey(), n.nodeName(), text)
			pipe.PExpire(limited, n.statesKey(), statesLife)
			_, _ = pipe.Exec(limited) // whether Redis answers is noticed and logged elsewhere
			cancel()
		}
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.Background(), watchEvery)
			defer cancel()
			_ = n.redis.log.HDel(last, n.statesKey(), n.nodeName()).Err()
			return
		case <-tick.C:
		}
	}
}

// fleet reads the states of all nodes that wrote one lately, and removes older ones.
func (n *node) fleet(ctx context.Context) (all []admin.NodeState) {
	fields, err := n.redis.log.HGetAll(ctx, n.statesKey()).Result()
	if err != nil {
		return nil
	}
	for name, text := range fields {
		var s admin.NodeState
		if err := json.Unmarshal([]byte(text), &s); err != nil || time.Since(s.At) > statesLife {
			_ = n.redis.log.HDel(ctx, n.statesKey(), name).Err()
		} else if time.Since(s.At) < goneAfter {
			all = append(all, s)
		}
	}
	return all
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
