package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	idleTime  = 5 * time.Second // in which bytes, commands and processor time are counted
	mostBytes = 10_000          // out of Redis a node and second
	mostCPU   = 8               // ms a second
)

// measureIdle prints what eight nodes cost Redis and their machines while nobody sends
// requests and nobody writes the tables.
func measureIdle(ctx context.Context, s *subject, r *report) error {
	f, err := startFleet(ctx, s, fleetNodes)
	if err != nil {
		return err
	}
	defer f.end()
	time.Sleep(fleetIdle)
	c := redis.NewClient(&redis.Options{Addr: f.redis.Addr(), DisableIdentity: true})
	defer c.Close()
	before, err := f.used()
	if err != nil {
		return err
	}
	began := time.Now()
	cost, err := overTime(ctx, c, func() error { time.Sleep(idleTime); return nil })
	if err != nil {
		return err
	}
	after, err := f.used()
	if err != nil {
		return err
	}
	var follower, others float64 // ms a second
	for i, n := range f.nodes {
		ms := 1000 * (after[i] - before[i]).Seconds() / time.Since(began).Seconds()
		if n.metric("listedge_freshness_follower") == 1 {
			follower += ms
		} else {
			others += ms / float64(len(f.nodes)-1)
		}
	}
	r.figure(fmt.Sprintf("%d idle nodes: heartbeats a second", fleetNodes), fmt.Sprintf("%.1f", cost.heartbeats), "")
	r.figure("… commands a second in Redis, those within scripts included", fmt.Sprintf("%.0f", cost.commands), "")
	r.atMost("… bytes out of Redis a node and second", "%.0f", []float64{cost.bytes / fleetNodes}, nil, mostBytes)
	r.figure("… of these, for a heartbeat", fmt.Sprintf("%.0f", cost.bytes/fleetNodes/cost.heartbeats), "")
	r.atMost("… CPU of a node that does not follow, ms a second", "%.1f", []float64{others}, nil, mostCPU)
	r.figure("… of the follower", fmt.Sprintf("%.1f", follower), "")
	return ctx.Err()
}

// used is the processor time of each node.
func (f *followingFleet) used() (used []time.Duration, err error) {
	for _, n := range f.nodes {
		spent, cpuErr := n.cpu()
		used, err = append(used, spent), errors.Join(err, cpuErr)
	}
	return used, err
}

// redisCost is what Redis does in a second.
type redisCost struct {
	bytes      float64 // sent
	commands   float64 // executed, those within scripts included
	heartbeats float64
}

// overTime is what Redis does while do runs.
func overTime(ctx context.Context, c *redis.Client, do func() error) (cost redisCost, err error) {
	read := func() (of redisCost, size int, err error) {
		text, err := c.Info(ctx, "all").Result()
		values := map[string]float64{}
		for line := range strings.Lines(text) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			value, _, _ = strings.Cut(strings.TrimPrefix(value, "calls="), ",")
			values[name], _ = strconv.ParseFloat(value, 64)
		}
		return redisCost{values["total_net_output_bytes"], values["total_commands_processed"], values["cmdstat_xadd"]}, len(text), err
	}
	before, own, err := read()
	if err != nil {
		return cost, err
	}
	began := time.Now()
	if err := do(); err != nil {
		return cost, err
	}
	after, _, err := read()
	seconds := time.Since(began).Seconds()
	return redisCost{(after.bytes - before.bytes - float64(own)) / seconds, (after.commands - before.commands - 1) / seconds,
		(after.heartbeats - before.heartbeats) / seconds}, err
}
