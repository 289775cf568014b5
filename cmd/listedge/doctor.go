package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"listedge/internal/changefeed"
	"listedge/origin"
	"listedge/origin/admin"
	"listedge/origin/follower"
	"listedge/origin/postgres"
)

// The doctor checks every server and node at once, and reports findings: what is
// fine, risky or broken, and what to do.
//
//	admin.Diagnose ── Postgres, replicas ─┐
//	doctor_redis.go ── Redis ──────────────┼─► findings, in this order
//	doctor_nodes.go ── each node ──────────┤
//	doctor_fleet.go ── all nodes together ─┘

type doctorCommand struct {
	DatabaseFlags
	ReplicationFlag
	RegionFlag
	ServerFlags
	jsonFlag
	Node []adminURL `help:"Admin listeners of the nodes, such as http://10.0.0.7:9090, comma-separated; a name with several addresses means all of them. Empty: nodes are not checked." placeholder:"URL"`
}

// followerConnections is the number of connections of the follower, which are not in the
// pools.
const followerConnections = 2

var errFindings = errors.New("at least one check failed: see above")

// Validate refuses an environment variable that is empty by mistake.
func (c *doctorCommand) Validate() error {
	if c.Node != nil && len(c.Node) == 0 {
		return errors.New("--node must not be empty")
	}
	return nil
}

// Run checks everything and prints the findings.
func (c *doctorCommand) Run(ctx context.Context, t *terminal) error {
	findings, err := c.examine(ctx)
	if err != nil {
		return err
	}
	err = c.print(t, findings, func() {
		for _, f := range findings {
			line := fmt.Sprintf("%-4s  %-26s %s", f.Level, f.Subject, f.Text)
			if f.Do != "" {
				line += ": " + f.Do
			}
			fmt.Fprintln(t.out, line)
		}
	})
	if err == nil && slices.ContainsFunc(findings, func(f admin.Finding) bool { return f.Level == admin.Fail }) {
		err = errFindings
	}
	return err
}

// examine checks all servers and nodes concurrently. Each check has a deadline.
func (c *doctorCommand) examine(ctx context.Context) ([]admin.Finding, error) {
	var checks sync.WaitGroup
	var database []admin.Finding
	var redis report
	var inRedis *redisState
	direct := cmp.Or(c.ReplicationURL, c.DatabaseURL)
	if c.RedisURL != "" {
		o, err := parseRedisURL(c.RedisURL)
		if err != nil {
			return nil, usageError{fmt.Errorf("--redis-url: %w", err)}
		}
		checks.Go(func() {
			followed := &changefeed.Followed{Region: c.Region} // unknown if Postgres does not answer, which is another finding
			if identity, timeline, err := follower.Identify(ctx, direct, c.Region); err == nil {
				followed.Found(identity, timeline)
			}
			inRedis = redis.checkRedis(ctx, o, followed)
		})
	}
	checks.Go(func() {
		database = admin.Diagnose(ctx, c.DatabaseURL, admin.DoctorOptions{Region: c.Region, ReplicationURL: c.ReplicationURL,
			Pages:       func(db *postgres.Database) admin.Reader { return origin.New(db) },
			Connections: c.DatabaseConnections + postgres.KeyConnections + postgres.UsageConnections + followerConnections})
	})
	replicas := make([]admin.Finding, len(c.ReplicaURL))
	for i, url := range c.ReplicaURL {
		checks.Go(func() { replicas[i] = admin.DiagnoseReplica(ctx, url, direct) })
	}
	var nodes []nodeState
	checks.Go(func() { nodes = readNodes(ctx, c.Node) })
	checks.Wait()
	all := report(slices.Concat(database, replicas, redis))
	for i := range nodes {
		all.checkNode(&nodes[i])
	}
	all.checkFleet(nodes, surroundings{region: c.Region, redis: inRedis, database: database})
	for i := range all { // an error of a server may have several lines
		all[i].Text = oneSentence(all[i].Text)
	}
	return all, nil
}

// report collects findings.
type report []admin.Finding

func (r *report) ok(subject, text string) {
	*r = append(*r, admin.Finding{Subject: subject, Level: admin.OK, Text: text})
}

func (r *report) warn(subject, text, do string) {
	*r = append(*r, admin.Finding{Subject: subject, Level: admin.Warn, Text: text, Do: do})
}

func (r *report) fail(subject, text, do string) {
	*r = append(*r, admin.Finding{Subject: subject, Level: admin.Fail, Text: text, Do: do})
}
