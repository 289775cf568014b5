package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/internal/sandbox"
	"listedge/origin/admin"
)

// walkedPages is how many pages of 50 items are walked.
const walkedPages = 2000

// measureRedisHits compares a page that a node finds in Redis with one that it
// has in memory and one GET of as many bytes: the two sides of the goal.
//
// Usually a node finds a page in Redis that it had in memory before, and that another node has
// read again after a change. So in each round all pages are purged, read by one node, and
// requested from the other twice: first from Redis, then from memory. Rounds alternate with
// those of the bare handler. (On a node that had just started, an eighth of a Redis hit was
// page faults, for memory that is used for the first time.)
//
// A GET is what a bare handler costs more when it GETs, by the same library: with
// its part of the waking and idling of a process that waits. It is of a value
// as large as a page is stored: without its compressed form, where nobody asked
// for that. The rest of the bare handler's answer does not stand for a memory
// hit: it writes one body over and over, which stays in the processor's cache,
// where pages that are asked for in turn do not. The ratio to the handler is
// printed nevertheless, and so is the strictest reading of the goal, by which
// all but the GET is measured by the memory hit.
//
// What a Redis hit saves is a page from Postgres: a node without Redis reads the same pages, of a walk
// and so several by one statement. Each is charged what its server spends, too.
func measureRedisHits(ctx context.Context, s *subject, r *report) error {
	f := must1(startFollowing(ctx, s, 2))
	defer f.end()
	first, node := f.nodes[0], f.nodes[1]
	alone := must1(s.startFollower(ctx, "--region", "alone"))
	defer alone.end()
	reader, asker, without := first.client(s.key), node.client(s.key), alone.client(s.key)
	paths := must1(reader.walk(ctx, walkedPages))
	_, bytes := must2(reader.getAll(paths, "identity"))
	page := bytes / len(paths)
	bare, stored := must2(f.startBareGets(ctx))
	defer bare.end()

	bareAsker := bare.client("")
	write := fmt.Sprintf("/?bytes=%d", page)
	get := fmt.Sprintf("%s&get=%d", write, stored)
	const fromRedis, fromMemory, withGet, withoutGet, fromPostgres = 0, 1, 2, 3, 4
	sides := [...]struct {
		of, asks *server // asks: what it asks in turn, nil = nothing that is counted
		by       *client
		paths    []string
		status   string // of nearly all answers
	}{
		fromRedis:    {node, &server{Child: f.redis.Child}, asker, paths, "listedge; hit"},
		fromMemory:   {node, nil, asker, paths, "listedge; hit"},
		withGet:      {bare, nil, bareAsker, slices.Repeat([]string{get}, len(paths)), ""},
		withoutGet:   {bare, nil, bareAsker, slices.Repeat([]string{write}, len(paths)), ""},
		fromPostgres: {alone, &server{Child: s.postgres.Child}, without, paths, ""},
	}
	var cost, asked [len(sides)]time.Duration
	statements := 0.0
	counted := 0
	for round := range rounds + 1 { // the first one is not counted
		must(admin.Purge(ctx, s.admin, &s.workspace))
		must(first.readPurged(ctx, reader, paths))
		must(without.awaitMiss(ctx, itemsPath(1)))
		trips, before := node.metric("listedge_cache_redis_calls_total"), alone.metric(fetched)
		var spent, spentThere [len(sides)]time.Duration
		found := len(paths) // at the least, where they were to be found
		for i, side := range sides {
			bring := func() error {
				by, _, err := side.by.getAll(side.paths, "identity")
				found = min(found, of(by, side.status))
				return err
			}
			spent[i] = must1(side.of.spent(func() (err error) {
				if side.asks == nil {
					return bring()
				}
				spentThere[i], err = side.asks.spent(bring)
				return err
			}))
			if i == fromRedis { // some ahead of their readers
				found = min(found, int(node.metric("listedge_cache_redis_calls_total")-trips))
			}
		}
		read := alone.metric(fetched) - before
		if round > 0 && found >= len(paths)*99/100 && int(read) >= statementsFor(len(paths)) {
			counted++
			statements += read
			for i := range spent {
				cost[i] += spent[i]
				asked[i] += spentThere[i]
			}
		}
	}
	if counted < rounds/2 {
		return fmt.Errorf("only in %d of %d rounds all pages were in Redis, and then in memory, and read from Postgres without Redis", counted, rounds)
	}
	each := func(of time.Duration) float64 { return micros(of, counted*len(paths)) }
	oneGet := cost[withGet] - cost[withoutGet]
	r.ratio(fmt.Sprintf("Redis hit, 50 items (%d bytes): CPU per request, µs, against a memory hit and a GET of as many", page), "%.1f",
		each(cost[fromRedis]), each(cost[fromMemory]+oneGet), 1.5)
	r.ratio("… without one GET, against a memory hit of the same client", "%.1f", each(cost[fromRedis]-oneGet), each(cost[fromMemory]), 0)
	r.ratio("… against a bare handler that GETs and writes as much", "%.1f", each(cost[fromRedis]), each(cost[withGet]), 0)
	r.ratio("… with Redis' part, against a page of a walk from Postgres, with its part", "%.1f",
		each(cost[fromRedis]+asked[fromRedis]), each(cost[fromPostgres]+asked[fromPostgres]), 0.8)
	r.figure("… of these in the nodes alone", fmt.Sprintf("%.1f", each(cost[fromRedis])), fmt.Sprintf("%.1f", each(cost[fromPostgres])))
	r.figure("… statements a page", "0", fmt.Sprintf("%.2f", statements/float64(counted*len(paths))))
	return nil
}

// awaitMiss asks for a page until it is read from Postgres: a purge has come to the node.
func (c *client) awaitMiss(ctx context.Context, path string) error {
	for range 10_000 {
		if _, status, err := c.get(path, "identity"); err != nil || ctx.Err() != nil || strings.HasPrefix(status, "listedge; fwd") {
			return errors.Join(err, ctx.Err())
		}
		time.Sleep(time.Millisecond)
	}
	return errors.New("the node does not hear of the purge")
}

// statementsFor is how many statements read so many neighbouring pages, at the least: each reads four.
func statementsFor(pages int) int { return pages * 99 / 400 }

// readPurged asks the node for pages until it has read all of them anew, and
// stored them in Redis: their purge has to come to it first. A statement reads several pages,
// and fewer for each while eight requests for neighbours are on their way at once.
func (s *server) readPurged(ctx context.Context, c *client, paths []string) error {
	read := func() int { return int(s.metric(fetched)) }
	before := read()
	for range 100 {
		if _, _, err := c.getAll(paths, "identity"); err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if read()-before >= statementsFor(len(paths)) {
			_, _, err := c.getAll(paths, "identity") // those that were asked for before the purge
			time.Sleep(50 * time.Millisecond)        // the last ones are on their way
			return err
		}
	}
	return errors.New("purged pages are not read anew")
}

// startBareGets starts a bare handler, with a value for it to GET that is as
// large as pages in Redis are on average.
func (f *followingFleet) startBareGets(ctx context.Context) (bare *server, size int, err error) {
	c := redis.NewClient(&redis.Options{Addr: f.redis.Addr(), DisableIdentity: true})
	defer c.Close()
	pages, total := c.Scan(ctx, 0, "*page:*", 1000).Iterator(), 0
	for n := 1; pages.Next(ctx); n++ {
		length, err := c.StrLen(ctx, pages.Val()).Result()
		if err != nil {
			return nil, 0, err
		}
		total += int(length)
		size = total / n
	}
	if err := errors.Join(pages.Err(), c.Set(ctx, bareKey, make([]byte, size), time.Hour).Err()); err != nil {
		return nil, 0, err
	}
	bare, err = startBare(f.redis.Addr())
	return bare, size, err
}

// info has the numbers of Redis' INFO by name, and those of a command as "name calls".
type info map[string]float64

// cpu is the processor time that Redis has used, in seconds.
func (i info) cpu() float64 { return i["used_cpu_sys"] + i["used_cpu_user"] }

func redisInfo(ctx context.Context, of *sandbox.Redis) (info, error) {
	c := redis.NewClient(&redis.Options{Addr: of.Addr(), DisableIdentity: true})
	defer c.Close()
	text, err := c.Info(ctx, "all").Result()
	found := info{"bytes": float64(len(text))} // of the answer itself
	for line := range strings.Lines(text) {
		name, values, _ := strings.Cut(strings.TrimSpace(line), ":")
		command, isCommand := strings.CutPrefix(name, "cmdstat_")
		for value := range strings.SplitSeq(values, ",") {
			if isCommand {
				name, value, _ = strings.Cut(value, "=")
				name = command + " " + name
			}
			if n, err := strconv.ParseFloat(value, 64); err == nil {
				found[name] = n
			}
		}
	}
	return found, err
}
