package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/edge/admin"
)

// The roster is a hash in Redis in which each node of a fleet writes its version and a
// short state. So the doctor finds an unfinished upgrade without the addresses of the
// nodes, and the status page of any node shows all nodes.

const (
	rosterKey   = "{listedge}:nodes"
	rosterEvery = 5 * time.Second
	// A node that has written nothing for rosterSilence has ended; after rosterLife the
	// others remove what it wrote.
	rosterSilence = 3 * rosterEvery
	rosterLife    = time.Minute
	rosterTimeout = 250 * time.Millisecond
	// rosterCleanup is how many writes lie between two looks of a node for entries to
	// remove: each reads the whole roster.
	rosterCleanup = 4
)

// rosterEntry is what a node writes.
type rosterEntry struct {
	Node     string `json:"node"` // host:port, for people: the machine's name and the port of the admin listener
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Seen     int64  `json:"seen"` // milliseconds of Redis' clock

	Fleet string           `json:"fleet,omitempty"` // the identity of the database whose changes it follows, as a digest
	State *admin.NodeState `json:"state,omitempty"` // for status pages
}

// versionText is as nodeState's, so that both read the same.
func (e rosterEntry) versionText() string {
	return e.Version + " (" + e.Revision[:min(len(e.Revision), 10)] + ")"
}

// enroll writes this node's entry again and again until ctx ends, and then removes it.
// Failures are not reported: conditions and readiness say that Redis is away, and a
// missing entry harms nothing.
func (n *node) enroll(ctx context.Context) {
	own := rand.Text()
	entry := rosterEntry{Version: version, Revision: builtFrom(), Node: n.name()}
	tick := time.NewTicker(rosterEvery)
	defer tick.Stop()
	for writes := 0; ; writes++ {
		entry.Fleet, entry.State = n.followed.Digest(), new(n.state())
		writeRoster(ctx, n.redis.log, own, entry, writes%rosterCleanup == 0)
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

// name tells nodes of one machine apart by the ports of their admin listeners.
func (n *node) name() string {
	host, _ := os.Hostname()
	if _, port, err := net.SplitHostPort(n.private.Addr().String()); err == nil {
		return net.JoinHostPort(host, port)
	}
	return host
}

// writeRoster writes an entry, and removes on request those of nodes that ended without
// removing theirs.
func writeRoster(ctx context.Context, client redis.UniversalClient, own string, entry rosterEntry, cleanup bool) {
	ctx, cancel := context.WithTimeout(ctx, rosterTimeout)
	defer cancel()
	now, err := client.Time(ctx).Result()
	if err != nil {
		return
	}
	entry.Seen = now.UnixMilli()
	text, err := json.Marshal(entry)
	if err != nil || client.HSet(ctx, rosterKey, own, text).Err() != nil || client.PExpire(ctx, rosterKey, rosterLife).Err() != nil || !cleanup {
		return
	}
	all, err := client.HGetAll(ctx, rosterKey).Result()
	if err != nil {
		return
	}
	for field, text := range all {
		var other rosterEntry
		if json.Unmarshal([]byte(text), &other) != nil || now.Sub(time.UnixMilli(other.Seen)) > rosterLife {
			_ = client.HDel(ctx, rosterKey, field).Err()
		}
	}
}

// readRoster returns the entries of the nodes that run, by their names.
func readRoster(ctx context.Context, client redis.UniversalClient) ([]rosterEntry, error) {
	now, err := client.Time(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("ask Redis for its time: %w", err)
	}
	all, err := client.HGetAll(ctx, rosterKey).Result()
	if err != nil {
		return nil, fmt.Errorf("read the nodes' versions: %w", err)
	}
	var entries []rosterEntry
	for _, text := range all {
		var e rosterEntry
		if json.Unmarshal([]byte(text), &e) == nil && now.Sub(time.UnixMilli(e.Seen)) <= rosterSilence {
			entries = append(entries, e)
		}
	}
	slices.SortFunc(entries, func(a, b rosterEntry) int { return cmp.Compare(a.Node, b.Node) })
	return entries, nil
}

// checkRoster reports which versions the nodes have that use a Redis; counted is how
// many they are by their heartbeats.
func (r *report) checkRoster(entries []rosterEntry, counted int64) {
	const subject, do = "redis nodes", "finish the upgrade: docs/UPGRADING.md"
	on, versions := map[string][]string{}, []string{}
	for _, e := range entries {
		text := e.versionText()
		if on[text] == nil {
			versions = append(versions, text)
		}
		on[text] = append(on[text], e.Node)
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
