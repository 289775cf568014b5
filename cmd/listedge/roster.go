package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	edgeadmin "listedge/edge/admin"
)

// The roster is a hash in Redis in which each node writes a short state of itself. So the
// status page of any one shows the fleet, and the doctor sees an upgrade that is not
// finished without being told where the nodes are.

const (
	rosterKey   = "{listedge}:nodes"
	rosterEvery = 5 * time.Second
	// A node that has written nothing for rosterSilence has ended; after rosterLife the
	// others remove what it wrote.
	rosterSilence = 3 * rosterEvery
	rosterLife    = time.Minute
	rosterTimeout = 250 * time.Millisecond
)

// versionText is as nodeState's, so that both read the same.
func versionText(s *edgeadmin.NodeState) string {
	return s.Version + " (" + s.Revision[:min(len(s.Revision), 10)] + ")"
}

// enroll writes this node's entry again and again until ctx ends, and then removes it.
// Failures are not reported: conditions and readiness say that Redis is away, and a
// missing entry harms nothing.
func (n *node) enroll(ctx context.Context) {
	own := rand.Text()
	tick := time.NewTicker(rosterEvery)
	defer tick.Stop()
	for {
		writeRoster(ctx, n.redis.log, own, n.state())
		select {
		case <-tick.C:
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), rosterTimeout)
			defer cancel()
			_ = n.redis.log.HDel(last, rosterKey, own).Err()
			return
		}
	}
}

// writeRoster writes an entry and removes those of nodes that ended without removing
// theirs.
func writeRoster(ctx context.Context, client redis.UniversalClient, own string, entry edgeadmin.NodeState) {
	ctx, cancel := context.WithTimeout(ctx, rosterTimeout)
	defer cancel()
	now, err := client.Time(ctx).Result()
	if err != nil {
		return
	}
	entry.Seen = now.UnixMilli()
	text, err := json.Marshal(entry)
	if err != nil || client.HSet(ctx, rosterKey, own, text).Err() != nil || client.PExpire(ctx, rosterKey, rosterLife).Err() != nil {
		return
	}
	all, err := client.HGetAll(ctx, rosterKey).Result()
	if err != nil {
		return
	}
	for field, text := range all {
		var other edgeadmin.NodeState
		if json.Unmarshal([]byte(text), &other) != nil || now.Sub(time.UnixMilli(other.Seen)) > rosterLife {
			_ = client.HDel(ctx, rosterKey, field).Err()
		}
	}
}

// readRoster returns the entries of the nodes that run, by their names.
func readRoster(ctx context.Context, client redis.UniversalClient) ([]edgeadmin.NodeState, error) {
	now, err := client.Time(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("ask Redis for its time: %w", err)
	}
	all, err := client.HGetAll(ctx, rosterKey).Result()
	if err != nil {
		return nil, fmt.Errorf("read the states of the nodes: %w", err)
	}
	var entries []edgeadmin.NodeState
	for _, text := range all {
		var e edgeadmin.NodeState
		if json.Unmarshal([]byte(text), &e) == nil && now.Sub(time.UnixMilli(e.Seen)) <= rosterSilence {
			entries = append(entries, e)
		}
	}
	slices.SortFunc(entries, func(a, b edgeadmin.NodeState) int { return cmp.Compare(a.Name, b.Name) })
	return entries, nil
}

// checkRoster reports which versions the nodes have that use a Redis; counted is how
// many they are by their heartbeats.
func (r *report) checkRoster(entries []edgeadmin.NodeState, counted int64) {
	const subject, do = "redis nodes", "finish the upgrade: docs/UPGRADING.md"
	on, versions := map[string][]string{}, []string{}
	for _, e := range entries {
		text := versionText(&e)
		if on[text] == nil {
			versions = append(versions, text)
		}
		on[text] = append(on[text], e.Name)
	}
	slices.SortStableFunc(versions, func(a, b string) int { return cmp.Compare(len(on[b]), len(on[a])) }) // the most frequent first
	var parts []string
	for _, v := range versions {
		parts = append(parts, v+" on "+strings.Join(on[v], ", "))
	}
	silent := counted - int64(len(entries))
	if silent > 0 {
		parts = append(parts, fmt.Sprintf("%d without a version: older than 0.2.0, or just started", silent))
	}
	switch text := strings.Join(parts, "; "); {
	case len(parts) == 0:
		r.ok(subject, "none runs")
	case len(parts) > 1:
		r.warn(subject, text, do)
	default:
		r.ok(subject, text)
	}
}
