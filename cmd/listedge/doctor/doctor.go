// Package doctor checks the servers and the nodes of a fleet at once, and reports findings:
// what is fine, risky or broken, and what to do.
//
//	admin.Diagnose ── Postgres, replicas ─┐
//	redis.go ── Redis ─────────────────────┼─► findings, in this order
//	nodes.go ── each node's own checks ────┤
//	fleet.go ── all nodes together ────────┘
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"listedge/cmd/listedge/node"
	"listedge/internal/changefeed"
	"listedge/origin"
	"listedge/origin/admin"
	"listedge/origin/postgres"
)

// Options name the servers and nodes to check.
type Options struct {
	DatabaseURL    string
	ReplicationURL string // empty = DatabaseURL
	Region         string
	node.ServerFlags
	Nodes []AdminURL // a name with several addresses means all of them
}

const (
	// timeout bounds all checks together: a server that hangs has a finding that says so.
	timeout = 5 * time.Second
	// followerConnections is the number of connections of the follower, which are not in the
	// pools.
	followerConnections = 2
)

// Examine checks all servers and nodes concurrently. An error is a setting that cannot work.
func Examine(ctx context.Context, o Options) ([]admin.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var checks sync.WaitGroup
	var database, redis []admin.Finding
	direct := cmp.Or(o.ReplicationURL, o.DatabaseURL)
	here, inRedis := view{"the doctor", map[string]string{"region": cmp.Or(o.Region, "none")}}, view{"Redis", map[string]string{}}
	var refused, wrong error
	if direct != o.DatabaseURL {
		checks.Go(func() { _, refused = postgres.IdentifyAt(ctx, o.DatabaseURL) })
	}
	checks.Go(func() {
		followed := &changefeed.Followed{Region: o.Region} // unknown if Postgres does not answer, which is another finding
		server, err := postgres.IdentifyAt(ctx, direct)
		if wrong = err; err == nil {
			followed.SetServer(server)
			here.says["database"] = server.Identity.String()
		}
		if o.RedisURL != "" {
			redis = checkRedis(ctx, o.RedisURL, followed, inRedis.says)
		}
	})
	checks.Go(func() {
		database = admin.Diagnose(ctx, o.DatabaseURL, admin.DoctorOptions{Region: o.Region, ReplicationURL: o.ReplicationURL, Nodes: len(o.Nodes),
			Pages:       func(db *postgres.Database) admin.Reader { return origin.New(db) },
			Connections: o.DatabaseConnections + postgres.KeyConnections + postgres.UsageConnections + followerConnections})
	})
	replicas := make([]admin.Finding, len(o.ReplicaURL))
	for i, url := range o.ReplicaURL {
		checks.Go(func() { replicas[i] = admin.DiagnoseReplica(ctx, url, direct) })
	}
	var nodes []nodeState
	checks.Go(func() { nodes = readNodes(ctx, o.Nodes) })
	checks.Wait()
	for _, err := range []error{refused, wrong} {
		if errors.Is(err, postgres.ErrParameter) {
			return nil, err
		}
	}
	all := slices.Concat(database, replicas, redis)
	for i := range nodes {
		all = append(all, nodes[i].check())
	}
	all = append(all, checksOf(nodes, all)...)
	nodes = slices.DeleteFunc(nodes, func(n nodeState) bool { return n.err != nil }) // each has a finding
	here.says["size"] = fmt.Sprint(len(nodes))
	return append(all, compareNodes(nodes, inRedis, here)...), nil
}

func finding(subject string, level admin.Level, text, remedy string) admin.Finding {
	return admin.Finding{Subject: subject, Level: level, Text: text, Remedy: remedy}
}
