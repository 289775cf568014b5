// Package doctor checks the servers and the nodes of a fleet at once, and reports findings:
// what is fine, risky or broken, and what to do.
//
//	node.Examine ── a node's own checks of its servers, run here ─┐
//	nodes.go ── what the nodes' checks have found ────────────────┼─► findings, in this order
//	fleet.go ── all nodes together ───────────────────────────────┘
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"listedge/cmd/listedge/node"
)

// timeout bounds all checks together: a server that hangs has a finding that says so.
const timeout = 5 * time.Second

// Level says how much a finding matters.
type Level string

// The values of Level.
const (
	OK   Level = "ok"
	Warn Level = "warn" // works, with the risk or loss that the text names
	Fail Level = "fail" // does not work
)

// Finding is the result of one check.
type Finding struct {
	Subject string `json:"subject"`
	Level   Level  `json:"level"`
	Text    string `json:"text"`
	Remedy  string `json:"remedy,omitempty"` // what to do about it
}

// Examine checks concurrently the servers of a node with these options, and the nodes that the
// URLs mean. An error is a setting that cannot work.
func Examine(ctx context.Context, o node.Options, urls []AdminURL) ([]Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var reading sync.WaitGroup
	var nodes []nodeState
	reading.Go(func() { nodes = readNodes(ctx, urls) })
	servers, err := node.Examine(ctx, o, len(urls))
	reading.Wait()
	if err != nil {
		return nil, err
	}
	doctor := nodeState{name: "the doctor", State: servers}
	found := checksOf(append([]nodeState{doctor}, nodes...))
	for i := range nodes {
		found = append(found, nodes[i].check())
	}
	nodes = slices.DeleteFunc(nodes, func(n nodeState) bool { return n.err != nil }) // each has a finding
	here := view{doctor.name, map[string]string{"region": cmp.Or(o.Region, "none"), "size": fmt.Sprint(len(nodes)),
		"database": fmt.Sprint(servers.Settings["database"]), "log of changes": servers.Self.Epoch}}
	return append(found, compareNodes(nodes, here)...), nil
}
