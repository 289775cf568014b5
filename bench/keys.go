package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

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
	keys := must1(s.makeKeys(ctx, keyCounts[len(keyCounts)-1]))
	file := filepath.Join(filepath.Dir(s.program), "keys") // as a script may not have so many constants
	must(os.WriteFile(file, []byte(strings.Join(keys, "\n")), 0o644))
	var sides []*side
	defer func() {
		for _, side := range sides {
			side.server.end()
		}
		err = errors.Join(err, s.dropSlot(context.Background())) // which all of them would keep WAL for
	}()
	for _, n := range keyCounts {
		node := must1(s.startFollower(ctx, "--cache-memory", "1GiB", "--region", fmt.Sprint("keys", n))) // follows by a slot of its own
		side := &side{name: fmt.Sprint(n, " keys"), server: node, path: itemsPath(pageSize)}
		sides = append(sides, side)
		warm := node.client("")
		if err := each(ctx, n, func(i int) error { // each page is in memory then
			_, _, err := (&client{http: warm.http, key: keys[i]}).get(itemsPath(pageSize), "identity")
			return err
		}); err != nil {
			return err
		}
		if side.script, err = s.keyScript(file, n); err != nil {
			return err
		}
	}
	must(takeTurns(ctx, keyRounds, connections, sides...))
	for i, s := range sides {
		if i > 0 {
			goal := 0.0
			if i == len(sides)-1 {
				goal = 1.35
			}
			r.ratio(fmt.Sprintf("memory hit, %d keys and workspaces: CPU per request, µs, against %d", keyCounts[i], keyCounts[0]), "%.2f",
				s.cost.perRequest(), sides[0].cost.perRequest(), goal)
		}
	}
	all := sides[len(sides)-1]
	if read := all.server.metric(fetched); read > float64(len(keys)+all.cost.requests/100) {
		return fmt.Errorf("%.0f pages were read for %d keys: not all were in memory", read, len(keys))
	}
	return nil
}

// makeKeys makes workspaces without rows and a key for each.
func (s *subject) makeKeys(ctx context.Context, n int) (keys []string, err error) {
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
	if _, err := s.db.CopyFrom(ctx, pgx.Identifier{"workspaces"}, []string{"id", "name"}, pgx.CopyFromRows(workspaces)); err != nil {
		return nil, err
	}
	columns := []string{"id", "workspace_id", "name", "key_hash", "key_prefix", "scopes", "rate_per_second", "burst"}
	_, err = s.db.CopyFrom(ctx, pgx.Identifier{"api_keys"}, columns, pgx.CopyFromRows(rows))
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
