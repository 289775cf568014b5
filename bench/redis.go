package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// walkedPages is how many pages of 50 items are walked where each may be asked
// for only once.
const walkedPages = 2000

// measureRedisHits compares a page that a node finds in Redis with one it has
// in memory plus a bare GET of as many bytes.
func measureRedisHits(ctx context.Context, s *subject, r *report) error {
	f, err := startFollowing(ctx, s, 2)
	if err != nil {
		return err
	}
	defer f.end()
	paths, err := f.nodes[0].client(s.key).walk(ctx, walkedPages)
	if err != nil {
		return err
	}
	node := f.nodes[1]
	asker := node.client(s.key)
	var fromRedis, fromMemory time.Duration
	for _, pass := range []struct {
		source string
		cpu    *time.Duration
	}{{"redis", &fromRedis}, {"memory", &fromMemory}} { // each page comes from Redis once: some ahead of its reader
		var by map[string]int
		*pass.cpu, err = node.spent(func() (err error) {
			by, _, err = asker.getAll(paths, "identity")
			return err
		})
		if err != nil {
			return err
		}
		hits := 0
		for status, n := range by {
			if strings.HasPrefix(status, "listedge; hit") && (pass.source == "redis" || strings.HasSuffix(status, pass.source)) {
				hits += n
			}
		}
		if hits < len(paths)*9/10 {
			return fmt.Errorf("too few hits from %s: %v", pass.source, by)
		}
	}
	identity, size, err := pageAndStored(asker, paths[0])
	if err != nil {
		return err
	}
	get, err := bareGets(ctx, f.redis.Addr(), size, identity, len(paths))
	if err != nil {
		return err
	}
	r.ratio(fmt.Sprintf("Redis hit, 50 items (%d bytes): CPU per request, µs, against a bare handler that GETs and writes as much", identity), "%.1f",
		micros(fromRedis, len(paths)), micros(get, len(paths)), 1.5)
	r.figure("… a memory hit of the same client", fmt.Sprintf("%.1f", micros(fromMemory, len(paths))), "")
	return nil
}

// pageAndStored is a page's size as it is sent, and as it is kept.
func pageAndStored(c *client, path string) (identity, stored int, err error) {
	for _, encoding := range []string{"identity", "gzip"} {
		body, _, err := c.get(path, encoding)
		if err != nil {
			return 0, 0, err
		}
		if encoding == "identity" {
			identity = len(body)
		}
		stored += len(body)
	}
	return identity, stored, nil
}

// bareGets is what n requests cost a bare handler that GETs a value of one size
// from Redis for each, and writes as much of it as a page has.
func bareGets(ctx context.Context, address string, size, page, n int) (used time.Duration, err error) {
	c := redis.NewClient(&redis.Options{Addr: address, DisableIdentity: true})
	defer c.Close()
	if err := c.Set(ctx, bareKey, make([]byte, size), time.Hour).Err(); err != nil {
		return 0, err
	}
	bare, err := startBare(address)
	if err != nil {
		return 0, err
	}
	defer bare.end()
	paths := make([]string, n)
	for i := range paths {
		paths[i] = fmt.Sprintf("/?bytes=%d&get=%d", page, size)
	}
	client := bare.client("")
	if _, _, err := client.getAll(paths[:n/4], "identity"); err != nil { // its connections
		return 0, err
	}
	return bare.spent(func() error {
		_, _, err := client.getAll(paths, "identity")
		return err
	})
}
