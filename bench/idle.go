package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	idleBefore      = 150 * time.Second // nodes rest a minute after the last request, and close connections a minute or two later
	idleTime        = 10 * time.Second  // in which bytes, commands and processor time are counted
	mostBytes       = 10_000            // out of Redis a node and second
	mostCommands    = 10                // to Redis a node and second
	mostConnections = 2                 // of a node that does not follow, to Postgres
	mostCPU         = 8                 // ms a second
)

// measureIdle prints what eight nodes cost Redis and their machines while nobody sends
// requests and nobody writes the tables. A follower has one connection more than other nodes, for its walsender.
func measureIdle(ctx context.Context, s *subject, r *report) error {
	own := must1(s.connections(ctx))
	f := must1(startFleet(ctx, s, fleetNodes))
	defer f.end()
	time.Sleep(idleBefore)
	connections := must1(s.connections(ctx)) - own
	used := must1(f.used())
	before := must1(redisInfo(ctx, f.redis))
	began := time.Now()
	time.Sleep(idleTime)
	after := must1(redisInfo(ctx, f.redis))
	seconds := time.Since(began).Seconds()
	usedAfter := must1(f.used())
	perSecond := func(name string, own float64) float64 { return (after[name] - before[name] - own) / seconds }
	commands := perSecond("total_reads_processed", 1)
	heartbeats, bytes := perSecond("xadd calls", 0), perSecond("total_net_output_bytes", before["bytes"])/fleetNodes
	var follower, others float64 // ms a second
	for i, n := range f.nodes {
		ms := 1000 * (usedAfter[i] - used[i]).Seconds() / seconds
		if n.metric("listedge_freshness_follower") == 1 {
			follower += ms
		} else {
			others += ms / float64(len(f.nodes)-1)
		}
	}
	r.figure(fmt.Sprintf("%d idle nodes: heartbeats a second", fleetNodes), fmt.Sprintf("%.1f", heartbeats), "")
	r.atMost("… commands to Redis a node and second, without the follower's", "%.1f", (commands-heartbeats)/fleetNodes, mostCommands)
	r.figure("… commands a second in Redis, of all and those within scripts", fmt.Sprintf("%.0f", perSecond("total_commands_processed", 1)), "")
	r.atMost("… connections to Postgres of a node that does not follow", "%.1f", (connections-1)/fleetNodes, mostConnections)
	r.atMost("… bytes out of Redis a node and second", "%.0f", bytes, mostBytes)
	r.figure("… of these, for a heartbeat", fmt.Sprintf("%.0f", bytes/heartbeats), "")
	r.atMost("… CPU of a node that does not follow, ms a second", "%.1f", others, mostCPU)
	r.figure("… of the follower", fmt.Sprintf("%.1f", follower), "")
	return ctx.Err()
}

// connections returns how many Postgres has.
func (s *subject) connections(ctx context.Context) (n float64, err error) {
	err = s.db.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'listedge%'").Scan(&n)
	return n, err
}

// used is the processor time of each node.
func (f *followingFleet) used() (used []time.Duration, err error) {
	for _, n := range f.nodes {
		spent, cpuErr := n.cpu()
		used, err = append(used, spent), errors.Join(err, cpuErr)
	}
	return used, err
}
