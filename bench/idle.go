package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"listedge/internal/changefeed"
	"listedge/origin/follower"
)

const (
	idleRounds  = 2
	idleTime    = 5 * time.Second // in which bytes and processor time are counted
	watchTime   = 5 * time.Second // in which commands are
	commitPause = 10 * time.Millisecond
	ageSamples  = 400
	ageEvery    = 11 * time.Millisecond // no multiple of a heartbeat's
	largeFleet  = 64
	hugeFleet   = 300
	freshBound  = 500 * time.Millisecond // of pages, unless --freshness-bound says otherwise
	mostBytes   = 10_000                 // out of Redis a node and second
	mostCPU     = 8                      // ms a second

	// probingVersion is the last one whose nodes prove by probes.
	probingVersion = "9012172"
)

// idleCost is what a fleet costs that nobody asks, and whose tables nobody writes.
type idleCost struct {
	bytes         float64         // out of Redis, a node and second
	commands      float64         // of the whole fleet a second, as Redis counts them
	heartbeats    float64         // a second
	sent          float64         // commands a second of a node that does not hold the slot
	followerSent  float64         // of the one that does
	inScripts     float64         // of all scripts
	cpu, follower float64         // processor time of a node that does not hold the slot and of the one that does, ms/s
	ages          []time.Duration // of proofs, on a node that does not hold the slot
}

// measureIdle prints what eight nodes cost while nothing happens, beside the
// version that proved by probes; how it grows with the number of nodes; and
// whether commits are visible as soon as they were.
func measureIdle(ctx context.Context, s *subject, r *report) error {
	versions := []*subject{s}
	if before, err := s.version(ctx, probingVersion); err == nil {
		versions = append(versions, before)
	} else {
		r.leaveOut(fmt.Sprintf("idle nodes of version %s: %v", probingVersion, err))
	}
	costs, delays := make([]idleCost, len(versions)), make([][]time.Duration, len(versions))
	for range idleRounds {
		for i, version := range versions {
			if err := version.idle(ctx, &costs[i]); err != nil {
				return err
			}
			f, err := startFleet(ctx, version, 3)
			if err != nil {
				return err
			}
			d, err := visibleDelays(ctx, version, f)
			f.end()
			if err != nil {
				return err
			}
			delays[i] = append(delays[i], d...)
		}
	}
	row := func(what, format string, goal float64, figures func(c *idleCost, delays []time.Duration) []float64) {
		var against []float64
		if len(versions) > 1 {
			against = figures(&costs[1], delays[1])
		}
		r.atMost(what, format, figures(&costs[0], delays[0]), against, goal)
	}
	row(fmt.Sprintf("%d idle nodes, against version %s: heartbeats a second", fleetNodes, probingVersion), "%.1f", 0,
		func(c *idleCost, _ []time.Duration) []float64 { return []float64{c.heartbeats} })
	row("… commands to Redis a second of a node that does not hold the slot (goal: heartbeats + 2)", "%.1f", costs[0].heartbeats+2,
		func(c *idleCost, _ []time.Duration) []float64 { return []float64{c.sent} })
	row("… of the node that holds it; within scripts of all", "%.1f, %.1f", 0,
		func(c *idleCost, _ []time.Duration) []float64 { return []float64{c.followerSent, c.inScripts} })
	row("… of all, as Redis counts them, those within scripts included", "%.0f", 0,
		func(c *idleCost, _ []time.Duration) []float64 { return []float64{c.commands} })
	row("… bytes out of Redis a node and second", "%.0f", mostBytes,
		func(c *idleCost, _ []time.Duration) []float64 { return []float64{c.bytes} })
	row("… CPU of a node that does not hold the slot, ms a second", "%.1f", mostCPU,
		func(c *idleCost, _ []time.Duration) []float64 { return []float64{c.cpu} })
	row("… of the one that does", "%.1f", mostCPU,
		func(c *idleCost, _ []time.Duration) []float64 { return []float64{c.follower} })
	row("… age of proofs where the slot is not held, ms: p50, max", "%.0f, %.0f", freshBound.Seconds()*1000/3,
		func(c *idleCost, _ []time.Duration) []float64 {
			return []float64{percentile(c.ages, 0.5), percentile(c.ages, 1)}
		})
	row("commit to visible, 3 nodes, ms: p50, p99", "%.1f, %.1f", 0,
		func(_ *idleCost, delays []time.Duration) []float64 {
			return []float64{percentile(delays, 0.5), percentile(delays, 0.99)}
		})
	return s.measureSubscribers(ctx, r)
}

// version is the subject with nodes of another version, built from git.
func (s *subject) version(ctx context.Context, commit string) (*subject, error) {
	other := *s
	dir := filepath.Join(filepath.Dir(s.program), commit)
	other.program = filepath.Join(dir, "bin", "listedge")
	c := exec.CommandContext(ctx, "sh", "-c", `mkdir -p "$1" && git archive "$2" | tar -x -C "$1" && go build -C "$1" -o "$3" ./cmd/listedge`, "sh", dir, commit, other.program)
	if out, err := c.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build it: %w: %s", err, out)
	}
	return &other, nil
}

// idle adds a round's share of what eight idle nodes cost.
func (s *subject) idle(ctx context.Context, cost *idleCost) error {
	f, err := startFleet(ctx, s, fleetNodes)
	if err != nil {
		return err
	}
	defer f.end()
	time.Sleep(fleetIdle)
	holder := -1
	for i, n := range f.nodes {
		if n.metric("listedge_freshness_follower") == 1 {
			holder = i
		}
	}
	if holder < 0 {
		return errors.New("no node holds the slot")
	}
	c := redis.NewClient(&redis.Options{Addr: f.redis.Addr(), DisableIdentity: true})
	defer c.Close()

	cpu := make([]time.Duration, len(f.nodes))
	for i, n := range f.nodes {
		if cpu[i], err = n.cpu(); err != nil {
			return err
		}
	}
	began := time.Now()
	of, err := overTime(ctx, c, pause)
	if err != nil {
		return err
	}
	for i, n := range f.nodes {
		after, err := n.cpu()
		if err != nil {
			return err
		}
		ms := (after - cpu[i]).Seconds() * 1000 / time.Since(began).Seconds() / idleRounds
		if i == holder {
			cost.follower += ms
		} else {
			cost.cpu += ms / float64(len(f.nodes)-1)
		}
	}
	cost.bytes += of.bytes / float64(len(f.nodes)) / idleRounds
	cost.commands += of.commands / idleRounds

	sent, heartbeats, err := watch(ctx, c)
	if err != nil {
		return err
	}
	cost.heartbeats += heartbeats / idleRounds
	cost.inScripts += sent["scripts"] / idleRounds
	for i := range f.nodes {
		if i == holder {
			cost.followerSent += sent[redisUser(i)] / idleRounds
		} else {
			cost.sent += sent[redisUser(i)] / float64(len(f.nodes)-1) / idleRounds
		}
	}
	other := f.nodes[(holder+1)%len(f.nodes)]
	for range ageSamples {
		cost.ages = append(cost.ages, time.Duration(other.metric("listedge_freshness_proof_age_seconds")*float64(time.Second)))
		time.Sleep(ageEvery)
	}
	return ctx.Err()
}

// redisCost is what Redis does in a second.
type redisCost struct {
	bytes      float64 // sent
	commands   float64 // executed, those within scripts included
	heartbeats float64
	cpu        float64 // processor time, ms
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
		return redisCost{values["total_net_output_bytes"], values["total_commands_processed"], values["cmdstat_xadd"],
			1000 * (values["used_cpu_user"] + values["used_cpu_sys"])}, len(text), err
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
		(after.heartbeats - before.heartbeats) / seconds, (after.cpu - before.cpu) / seconds}, err
}

func pause() error {
	time.Sleep(idleTime)
	return nil
}

// watch counts commands a second by the users that send them, and heartbeats.
func watch(ctx context.Context, c *redis.Client) (sent map[string]float64, heartbeats float64, err error) {
	monitor, err := net.Dial("tcp", c.Options().Addr)
	if err != nil {
		return nil, 0, err
	}
	defer monitor.Close()
	_ = monitor.SetReadDeadline(time.Now().Add(watchTime))
	_, err = fmt.Fprint(monitor, "MONITOR\r\n")
	if err != nil {
		return nil, 0, err
	}
	text, _ := io.ReadAll(monitor) // until the deadline
	clients, err := c.ClientList(ctx).Result()
	if err != nil {
		return nil, 0, err
	}
	users := map[string]string{} // by address; a script's is lua
	for line := range strings.Lines(clients) {
		address, user := "", ""
		for field := range strings.FieldsSeq(line) {
			if value, ok := strings.CutPrefix(field, "addr="); ok {
				address = value
			} else if value, ok := strings.CutPrefix(field, "user="); ok {
				user = value
			}
		}
		users[address] = user
	}
	sent = map[string]float64{}
	for line := range strings.Lines(string(text)) {
		_, rest, _ := strings.Cut(line, " [0 ") // 1700000000.123456 [0 127.0.0.1:5000] "xread" "count" …
		address, command, _ := strings.Cut(rest, "] ")
		if address == "lua" {
			users[address] = "scripts"
		}
		sent[users[address]] += 1 / watchTime.Seconds()
		if strings.HasPrefix(command, `"xadd"`) {
			heartbeats += 1 / watchTime.Seconds()
		}
	}
	return sent, heartbeats, nil
}

// measureSubscribers prints what a node that holds the slot and subscribers of
// one process cost Redis. What is sent to each does not grow with their number.
func (s *subject) measureSubscribers(ctx context.Context, r *report) error {
	f, err := startFleet(ctx, s, 1)
	if err != nil {
		return err
	}
	defer f.end()
	identity, timeline, err := follower.Identify(ctx, s.url, "")
	if err != nil {
		return err
	}
	c := redis.NewClient(&redis.Options{Addr: f.redis.Addr(), DisableIdentity: true})
	defer c.Close()
	var few, many, writing redisCost
	commits := 0
	for nodes, cost := range map[int]*redisCost{fleetNodes: &few, largeFleet: &many} {
		end := f.subscribe(ctx, nodes-1, identity, timeline)
		time.Sleep(fleetIdle)
		if *cost, err = overTime(ctx, c, pause); err == nil && nodes == largeFleet {
			writing, err = overTime(ctx, c, func() (err error) {
				commits, err = s.commit(ctx)
				return err
			})
		}
		end()
		if err != nil {
			return err
		}
	}
	of := func(cost redisCost, readers int) float64 { return cost.bytes / cost.heartbeats / float64(readers) }
	what := fmt.Sprintf("a node that holds the slot and %d subscribers of one process, against %d: ", largeFleet-1, fleetNodes-1)
	r.ratio(what+"bytes out of Redis for each of them and heartbeat", "%.0f", of(many, largeFleet), of(few, fleetNodes), 1.1)
	r.ratio("… commands a heartbeat for each subscriber more, against heartbeats + 2 a second", "%.2f",
		(many.commands/many.heartbeats-few.commands/few.heartbeats)/(largeFleet-fleetNodes), 1+2/many.heartbeats, 1)
	r.figure("… CPU of Redis, ms a second", fmt.Sprintf("%.0f", many.cpu), fmt.Sprintf("%.0f", few.cpu))
	each := float64(commits) / idleTime.Seconds()
	r.figure(fmt.Sprintf("… bytes out of Redis for each of them and commit, at %.0f a second", each),
		fmt.Sprintf("%.0f", (writing.bytes/largeFleet-of(many, largeFleet)*(writing.heartbeats-each))/each), "")
	r.atMost(fmt.Sprintf("… %d nodes by formula, MB/s out of Redis without writes", hugeFleet), "%.1f", []float64{hugeFleet * of(many, largeFleet) * many.heartbeats / 1e6}, nil, 3)
	return nil
}

// commit changes a page at an even pace for idleTime.
func (s *subject) commit(ctx context.Context) (commits int, err error) {
	workspace, _, err := smallWorkspace(ctx, s)
	if err != nil {
		return 0, err
	}
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.Background())
	for began := time.Now(); time.Since(began) < idleTime; time.Sleep(commitPause) {
		if _, err := conn.Exec(ctx, countUp, workspace, strconv.Itoa(commits)); err != nil {
			return commits, err
		}
		commits++
	}
	return commits, nil
}

// subscribe has so many subscribers read the log, until end.
func (f *followingFleet) subscribe(ctx context.Context, n int, identity changefeed.Identity, timeline uint32) (end func()) {
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	for range n {
		running.Go(func() {
			c := redis.NewClient(&redis.Options{Addr: f.redis.Addr(), DisableIdentity: true, Protocol: 2, ContextTimeoutEnabled: true, MaxRetries: -1})
			defer c.Close()
			followed := &changefeed.Followed{}
			followed.Found(identity, timeline)
			changefeed.NewSubscriber(changefeed.NewRedis(c, followed), followed, slog.New(slog.DiscardHandler)).Run(ctx)
		})
	}
	return func() {
		stop()
		running.Wait()
	}
}
