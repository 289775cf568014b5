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
	"listedge/origin/follower"
	"listedge/origin/postgres"
)

type doctorCommand struct {
	databaseFlags
	replicationFlag
	regionFlag
	jsonFlag
	RedisURL            string     `help:"Redis, as for serve; empty: none is looked at." placeholder:"URL"`
	ReplicaURL          []string   `help:"Hot standbys, as for serve." placeholder:"URL"`
	Node                []adminURL `help:"Admin listeners of the nodes, as http://10.0.0.7:9090, comma-separated; a name with several addresses means all of them. Empty: no node is looked at." placeholder:"URL"`
	DatabaseConnections int        `help:"What serve is given." default:"16"`
}

// followerConnections are beside those of the pools: to ask and to replicate.
const followerConnections = 2

var errFindings = errors.New("something fails; see above")

// Validate is explicit because each of the embedded has one.
func (c *doctorCommand) Validate() error {
	if c.Node != nil && len(c.Node) == 0 { // not the wish to look at none
		return errors.New("--node must not be empty")
	}
	if c.DatabaseConnections < 1 {
		return errors.New("--database-connections must be at least 1")
	}
	return cmp.Or(c.databaseFlags.Validate(), c.replicationFlag.Validate(), c.regionFlag.Validate(), checkReplicas(c.ReplicaURL), checkRedis(c.RedisURL))
}

// Run looks at everything and says what it found.
func (c *doctorCommand) Run(ctx context.Context, t *terminal) error {
	findings, err := c.look(ctx)
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
	if err == nil && slices.ContainsFunc(findings, func(f origin.Finding) bool { return f.Level == origin.Fail }) {
		err = errFindings
	}
	return err
}

// followed is what a fleet would follow here; nothing is known if Postgres does
// not say, which is a finding of its own.
func (c *doctorCommand) followed(ctx context.Context) *changefeed.Followed {
	f := &changefeed.Followed{}
	if identity, timeline, err := follower.Identify(ctx, cmp.Or(c.ReplicationURL, c.DatabaseURL), c.Region); err == nil {
		f.Found(identity, timeline)
	}
	return f
}

// look asks all servers and nodes at once: together they take as long as the
// slowest, and each has a deadline.
func (c *doctorCommand) look(ctx context.Context) ([]origin.Finding, error) {
	var asked sync.WaitGroup
	var database, redis []origin.Finding
	var inRedis *redisSeen
	if c.RedisURL != "" {
		o, err := parseRedisURL(c.RedisURL)
		if err != nil {
			return nil, usageError{fmt.Errorf("--redis-url: %w", err)}
		}
		asked.Go(func() { redis, inRedis = diagnoseRedis(ctx, o, c.followed(ctx)) })
	}
	asked.Go(func() {
		database = origin.Diagnose(ctx, c.DatabaseURL, origin.DoctorOptions{Region: c.Region,
			Primary:     c.ReplicationURL,
			Connections: c.DatabaseConnections + postgres.KeyConnections + followerConnections,
		})
	})
	replicas := make([]origin.Finding, len(c.ReplicaURL))
	for i, url := range c.ReplicaURL {
		asked.Go(func() { replicas[i] = origin.DiagnoseReplica(ctx, url, cmp.Or(c.ReplicationURL, c.DatabaseURL)) })
	}
	var nodes []nodeSeen
	asked.Go(func() { nodes = seeNodes(ctx, c.Node) })
	asked.Wait()
	findings := slices.Concat(database, replicas, redis)
	for _, n := range nodes {
		findings = append(findings, n.judge()...)
	}
	findings = append(findings, judgeFleet(nodes, surroundings{region: c.Region, redis: inRedis, database: database})...)
	for i := range findings { // what a server says may take several
		findings[i].Text = oneSentence(findings[i].Text)
	}
	return findings, nil
}
