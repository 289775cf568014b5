package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/origin/apikey"
)

// keyCounts are how many keys ask in turn, each of a workspace of its own.
var keyCounts = []int{10, 1000, 10_000, 100_000}

// keyRounds are more than others': every two minutes a heap is collected, which
// of 100,000 keys takes a twentieth of a round's CPU time.
const keyRounds = 2 * rounds

// measureKeys compares a node that knows many keys with one that knows a few.
// What is counted is the nodes' CPU time and not wrk's; wrk does the same on
// all sides, with as many requests of the same length prepared, so that it
// leaves each node as much of the processor's cache.
func measureKeys(ctx context.Context, s *subject, r *report) (err error) {
	keys, err := s.makeKeys(ctx, keyCounts[len(keyCounts)-1])
	if err != nil {
		return err
	}
	file := filepath.Join(filepath.Dir(s.program), "keys") // as a script may not have so many constants
	if err := os.WriteFile(file, []byte(strings.Join(keys, "\n")), 0o644); err != nil {
		return err
	}
	var sides []*side
	defer func() {
		for _, side := range sides {
			side.server.end()
		}
		err = errors.Join(err, s.dropSlot(context.Background())) // which all of them would keep WAL for
	}()
	for _, n := range keyCounts {
		node, err := s.startFollower(ctx, "--cache-memory", "1GiB", "--region", fmt.Sprint("keys", n)) // follows by a slot of its own
		if err != nil {
			return err
		}
		side := &side{name: fmt.Sprint(n, " keys"), server: node, path: itemsPath(pageSize)}
		sides = append(sides, side)
		if err := node.warm(ctx, keys[:n]); err != nil {
			return err
		}
		if side.script, err = s.keyScript(file, n); err != nil {
			return err
		}
	}
	before := foundByTier(sides)
	if err := takeTurns(ctx, keyRounds, connections, sides...); err != nil {
		return err
	}
	for i, s := range sides {
		r.point("Growth: CPU per memory hit, µs", "keys and workspaces", "memory hit", keyCounts[i], s.cost.perRequest())
		if i > 0 {
			goal := 0.0
			if i == len(sides)-1 {
				goal = 1.35
			}
			r.ratio(fmt.Sprintf("memory hit, %d keys and workspaces: CPU per request, µs, against %d", keyCounts[i], keyCounts[0]), "%.2f",
				s.cost.perRequest(), sides[0].cost.perRequest(), goal)
		}
	}
	found := foundByTier(sides)
	if memory, other := found[0]-before[0], found[1]-before[1]; other > memory/100 {
		return fmt.Errorf("%.0f pages from memory, %.0f from elsewhere", memory, other)
	}
	return nil
}

// foundByTier is how many pages the sides' nodes found in memory, and how many
// they did not.
func foundByTier(sides []*side) (found [2]float64) {
	for _, s := range sides {
		for i, tier := range []string{"memory", "redis", "origin", "stale"} {
			found[min(i, 1)] += s.server.metric(fmt.Sprintf("listedge_cache_requests_total{tier=%q}", tier))
		}
	}
	return found
}

// warm asks once with each key, so that each page is in memory.
func (s *server) warm(ctx context.Context, keys []string) error {
	const workers = 8
	var next atomic.Int64
	errs := make([]error, workers)
	var running sync.WaitGroup
	for w := range workers {
		running.Go(func() {
			c := s.client("")
			for i := int(next.Add(1)) - 1; i < len(keys) && errs[w] == nil && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				c.key = keys[i]
				_, _, errs[w] = c.get(itemsPath(pageSize), "identity")
			}
		})
	}
	running.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

// makeKeys makes workspaces without rows and a key for each.
func (s *subject) makeKeys(ctx context.Context, n int) (keys []string, err error) {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.Background())
	workspaces, rows := make([][]any, n), make([][]any, n)
	for i := range n {
		key := apikey.Generate()
		hash, ok := apikey.HashOf([]byte(key))
		if !ok {
			return nil, fmt.Errorf("BUG: %s is no key", key)
		}
		keys = append(keys, key)
		workspace := uuid.New()
		workspaces[i] = []any{workspace, "bench"}
		rows[i] = []any{uuid.New(), workspace, "bench", hash[:], key[:9], []string{"items:read"}, 1e6, 1_000_000}
	}
	if _, err := conn.CopyFrom(ctx, pgx.Identifier{"workspaces"}, []string{"id", "name"}, pgx.CopyFromRows(workspaces)); err != nil {
		return nil, err
	}
	_, err = conn.CopyFrom(ctx, pgx.Identifier{"api_keys"}, []string{"id", "workspace_id", "name", "key_hash", "key_prefix", "scopes", "rate_per_second", "burst"}, pgx.CopyFromRows(rows))
	return keys, err
}

// keyScript has wrk send as many requests in turn as there are keys in the file,
// with the first n of them. Equal requests would be one to Lua, so each names
// another agent.
func (s *subject) keyScript(file string, n int) (script string, err error) {
	script = filepath.Join(filepath.Dir(s.program), fmt.Sprintf("keys-%d.lua", n))
	return script, os.WriteFile(script, fmt.Appendf(nil, keyLua, file, n), 0o644)
}

const keyLua = `
local requests, at = {}, 0
init = function()
	local keys = {}
	for key in io.lines(%q) do keys[#keys + 1] = key end
	for i = 1, #keys do
		requests[i] = wrk.format("GET", nil, { ["X-API-Key"] = keys[(i - 1) %% %d + 1], ["User-Agent"] = string.format("bench/%%06d", i) })
	end
	at = os.time() * 7919 %% #requests -- each round begins elsewhere
end
request = function()
	at = at %% #requests + 1
	return requests[at]
end
`
