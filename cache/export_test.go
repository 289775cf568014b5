package cache

import (
	"context"
	"time"

	"listedge/internal/page"
)

// Encode returns a page as another node stored it: some time ago, or of another server.
func Encode(q *page.Query, read page.Read, epoch string, life time.Duration, readAt time.Time) []byte {
	f := reading{Read: read, epoch: epoch}
	return f.encode(q.AppendKey(nil), life, readAt)
}

// WaitStored waits until all stores to Redis have ended, which no request waits for, by
// taking all their places.
func (c *Cache) WaitStored() {
	if c.redis == nil {
		return
	}
	for range cap(c.redis.async) {
		c.redis.async <- struct{}{}
	}
	for range cap(c.redis.async) {
		<-c.redis.async
	}
}

// SetRedisBudgets sets how long calls to Redis may take, because this machine may be busy.
func (c *Cache) SetRedisBudgets(request, store time.Duration) {
	if c.redis != nil {
		c.redis.budget, c.redis.storeBudget = request, store
	}
}

// DropPages empties memory, as if other pages had evicted all. The rows stay.
func (c *Cache) DropPages() { c.memory.ristretto.Clear() }

// SetHurry sets what asks for heartbeats.
func (c *Cache) SetHurry(hurry func(context.Context)) { c.options.Hurry = hurry }
