package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
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
		before, err := node.cpu()
		if err != nil {
			return err
		}
		by, _, err := asker.getAll(paths, "identity")
		if err != nil {
			return err
		}
		after, err := node.cpu()
		if err != nil {
			return err
		}
		hits := 0
		for status, n := range by {
			if strings.HasPrefix(status, "listedge; hit") && (pass.source == "redis" || strings.HasSuffix(status, pass.source)) {
				hits += n
			}
		}
		if *pass.cpu = after - before; hits < len(paths)*9/10 {
			return fmt.Errorf("too few hits from %s: %v", pass.source, by)
		}
	}
	identity, size, err := pageAndStored(asker, paths[0])
	if err != nil {
		return err
	}
	get, err := bareGet(ctx, f.redis.Addr(), size, len(paths))
	if err != nil {
		return err
	}
	r.ratio(fmt.Sprintf("Redis hit, 50 items (%d bytes): CPU per request, µs, against a memory hit and a bare GET", identity), "%.1f",
		micros(fromRedis, len(paths)), micros(fromMemory+get, len(paths)), 1.5)
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

// bareGet is what n GETs of a value of that size cost this process, over eight
// connections.
func bareGet(ctx context.Context, address string, size, n int) (time.Duration, error) {
	c := redis.NewClient(&redis.Options{Addr: address, DisableIdentity: true})
	defer c.Close()
	if err := c.Set(ctx, "bench", make([]byte, size), time.Minute).Err(); err != nil {
		return 0, err
	}
	var failed error
	var once sync.Once
	get := func(n int) {
		var running sync.WaitGroup
		for range 8 {
			running.Go(func() {
				buffer := make([]byte, size)
				for range n / 8 {
					if _, err := c.GetToBuffer(ctx, "bench", buffer).Result(); err != nil {
						once.Do(func() { failed = err })
						return
					}
				}
			})
		}
		running.Wait()
	}
	get(n / 4) // connections, and a warm client
	before := ownCPU()
	get(n)
	return ownCPU() - before, failed
}
