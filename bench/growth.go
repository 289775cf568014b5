package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/origin"
)

// measureGrowth compares a large workspace with a small one.
func measureGrowth(ctx context.Context, s *subject, r *report) error {
	db, err := origin.Open(ctx, origin.DatabaseOptions{URL: s.url, Connections: 1, QueryTimeout: 10 * time.Second})
	if err != nil {
		return err
	}
	defer func() { _ = db.Close(context.Background()) }()
	o := origin.New(db)
	for _, c := range []struct {
		what, few string
		goal      float64
	}{{"list", "", 1.15}, {"search that few rows match", "few", 2}, {"search that many rows match", "many", 2}} {
		ask := func(workspace uuid.UUID) (func() error, error) {
			term, err := s.term(ctx, workspace, c.few)
			q := origin.Query{Workspace: workspace, Collection: origin.Items, Limit: pageSize, Search: term}
			return func() error { _, err := o.Fetch(ctx, q); return err }, err
		}
		large, err := ask(s.workspace)
		if err != nil {
			return err
		}
		small, err := ask(s.small)
		if err != nil {
			return err
		}
		ours, theirs, err := alternate(large, small)
		if err != nil {
			return err
		}
		r.ratio(fmt.Sprintf("%s, %d items: time per query, µs, against 1,000 items", c.what, s.items), "%.0f", ours.wall, theirs.wall, c.goal)
	}
	return nil
}

// term is something to search for in a workspace: one SKU, or the commonest
// word of its names.
func (s *subject) term(ctx context.Context, workspace uuid.UUID, which string) (term string, err error) {
	statement := map[string]string{
		"few":  "SELECT sku FROM items WHERE workspace_id = $1 AND active AND sku IS NOT NULL ORDER BY id LIMIT 1",
		"many": "SELECT word FROM (SELECT name FROM items WHERE workspace_id = $1 LIMIT 1000) i, regexp_split_to_table(lower(name), '\\W+') word WHERE length(word) > 3 GROUP BY 1 ORDER BY count(*) DESC LIMIT 1",
	}[which]
	if statement == "" {
		return "", nil
	}
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.Background())
	err = conn.QueryRow(ctx, statement, workspace).Scan(&term)
	return term, err
}

// fewKeys and manyKeys, each of a workspace of its own.
const fewKeys, manyKeys = 10, 20_000

// measureKeys compares hits of many keys with hits of a few.
func measureKeys(ctx context.Context, s *subject, r *report) error {
	keys, err := s.makeKeys(ctx, manyKeys)
	if err != nil {
		return err
	}
	node, err := s.startNode()
	if err != nil {
		return err
	}
	defer node.end()
	many := &side{name: "many keys", server: node, path: itemsPath(pageSize)}
	few := &side{name: "few keys", server: node, path: itemsPath(pageSize)}
	for of, n := range map[*side]int{many: manyKeys, few: fewKeys} {
		if of.script, err = s.keyScript(keys[:n]); err != nil {
			return err
		}
	}
	for asked := 0; asked < 3*manyKeys; { // until each page is in memory
		var round cost
		if err := many.drive(ctx, connections, &round); err != nil {
			return err
		}
		asked += round.requests
	}
	if err := takeTurns(ctx, rounds/2, connections, many, few); err != nil {
		return err
	}
	r.ratio(fmt.Sprintf("memory hit, %d keys and workspaces: CPU per request, µs, against %d", manyKeys, fewKeys), "%.2f", many.cost.perRequest(), few.cost.perRequest(), 1.1)
	return nil
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
		key := madeUpKey()
		hash, ok := origin.HashKey([]byte(key))
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

// madeUpKey is a well-formed key.
func madeUpKey() string {
	const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	random := (rand.Text() + rand.Text())[:34]
	sum, n := [6]byte{}, crc32.ChecksumIEEE([]byte(random))
	for i := len(sum) - 1; i >= 0; i-- {
		sum[i] = base62[n%62]
		n /= 62
	}
	return "lk_" + random + string(sum[:])
}

// keyScript has wrk send the keys in turn.
func (s *subject) keyScript(keys []string) (file string, err error) {
	file = filepath.Join(filepath.Dir(s.program), fmt.Sprintf("keys-%d.lua", len(keys)))
	text := "local keys = {\"" + strings.Join(keys, "\",\"") + "\"}\n" + `
local requests, at = {}, 0
init = function()
	for i, key in ipairs(keys) do requests[i] = wrk.format("GET", nil, { ["X-API-Key"] = key }) end
end
request = function()
	at = at % #requests + 1
	return requests[at]
end
`
	return file, os.WriteFile(file, []byte(text), 0o644)
}
