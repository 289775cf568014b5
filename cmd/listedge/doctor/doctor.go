// Package doctor checks the servers and the nodes of a fleet at once, and reports findings:
// what is fine, risky or broken, and what to do.
//
//	admin.Diagnose ── settings of Postgres, replicas ─┐
//	node.Examine ── a node's own checks of its servers ┼─► findings, in this order
//	nodes.go ── what the nodes' checks have found ─────┤
//	fleet.go ── all nodes together ────────────────────┘
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"listedge/cmd/listedge/node"
	edgeadmin "listedge/edge/admin"
	"listedge/origin/admin"
	"listedge/origin/postgres"
)

const (
	// timeout bounds all checks together: a server that hangs has a finding that says so.
	timeout = 5 * time.Second
	// followerConnections is the number of connections of the follower, which are not in the
	// pools.
	followerConnections = 2
)

// Examine checks concurrently the servers of a node with these options, and the nodes that the
// URLs mean. An error is a setting that cannot work.
func Examine(ctx context.Context, o node.Options, urls []AdminURL) ([]admin.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var checks sync.WaitGroup
	var database []admin.Finding
	checks.Go(func() {
		database = admin.Diagnose(ctx, o.DatabaseURL, admin.DoctorOptions{Region: o.Region, ReplicationURL: o.ReplicationURL, Nodes: len(urls),
			Connections: o.DatabaseConnections + postgres.KeyConnections + postgres.UsageConnections + followerConnections})
	})
	replicas := make([]admin.Finding, len(o.ReplicaURL))
	for i, url := range o.ReplicaURL {
		checks.Go(func() { replicas[i] = admin.DiagnoseReplica(ctx, url, cmp.Or(o.ReplicationURL, o.DatabaseURL)) })
	}
	var nodes []nodeState
	checks.Go(func() { nodes = readNodes(ctx, urls) })
	servers, err := node.Examine(ctx, o)
	if checks.Wait(); err != nil {
		return nil, err
	}
	all := slices.Concat(database, replicas)
	all = append(all, checksOf([]nodeState{{name: "the doctor", State: edgeadmin.State{Checks: servers.Checks}}}, all)...)
	for i := range nodes {
		all = append(all, nodes[i].check())
	}
	all = append(all, checksOf(nodes, all)...)
	nodes = slices.DeleteFunc(nodes, func(n nodeState) bool { return n.err != nil }) // each has a finding
	here := view{"the doctor", map[string]string{"region": cmp.Or(o.Region, "none"), "database": servers.Database, "size": fmt.Sprint(len(nodes))}}
	return append(all, compareNodes(nodes, view{"Redis", map[string]string{"log of changes": servers.Epoch}}, here)...), nil
}

func finding(subject string, level admin.Level, text, remedy string) admin.Finding {
	return admin.Finding{Subject: subject, Level: level, Text: text, Remedy: remedy}
}
