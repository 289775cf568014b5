package cache

import (
	"context"
	"time"

	"listedge/internal/changefeed"
)

// lookUp is the way of one page that is not fresh in memory: first near, then
// far.
type lookUp struct {
	cache *Cache
	key   []byte
	pair  changefeed.List
	fill  Fill

	held   *Entry // the newest stale page so far, which may stand in; nil = none
	source Source
	began  time.Time // when Redis was asked first
}

// near looks in memory once more, for another flight may have landed since its
// caller did, and then in Redis.
func (l *lookUp) near() (Result, bool) {
	c := l.cache
	r, ok := c.recall(c.memory.get(l.key))
	if ok {
		return r, true
	}
	l.held, l.source, l.began = r.Entry, Memory, time.Now()
	p := c.fromRedis(c.ctx, l.key, l.pair, true)
	if p == nil {
		return Result{}, false
	}
	switch c.judge(p, time.Now()) {
	case fresh:
		return l.foundInRedis(p), true
	case stale:
		if l.held == nil || p.Proof.After(l.held.Proof) {
			l.held, l.source = p, Redis
		}
	}
	return Result{}, false
}

// far waits for another node that may be reading the page, and then asks the
// origin.
func (l *lookUp) far() (Result, error) {
	c := l.cache
	ctx, cancel := context.WithTimeout(c.ctx, c.options.FillTimeout)
	defer cancel()
	if p := c.fromFleet(ctx, l.key, l.pair); p != nil {
		return l.foundInRedis(p), nil
	}
	var asked Span
	if c.redis != nil {
		asked = since(l.began)
	}
	r, err := c.read(ctx, l.key, l.pair, l.held, l.source, l.fill)
	r.Times.Redis = asked
	came := err == nil && r.Err == nil
	if c.follow.on() && !(came && (r.Entry.stands() || c.ahead.again(l.key, l.pair, r.Entry, l.fill))) {
		c.release(l.key) // storing a page that stands does so itself
	}
	return r, err
}

func (l *lookUp) foundInRedis(p *Entry) Result {
	l.cache.memory.put(l.key, p, l.cache.remaining(p))
	return Result{Entry: p, Source: Redis, Times: &Times{Redis: since(l.began)}}
}

// whole is near and far in one.
func (l *lookUp) whole() (Result, error) {
	if r, ok := l.near(); ok {
		return r, nil
	}
	return l.far()
}

// fromRedis returns the key's page in Redis, if it has one, as it stands to
// the changes known here. How old a page is that stands, its node knows better
// than Redis; one that does not is asked for again, with its age, where a stale
// page is of use.
func (c *Cache) fromRedis(ctx context.Context, key []byte, pair changefeed.List, useStale bool) *Entry {
	if c.redis == nil {
		return nil
	}
	trusted := c.follow.on() && c.follow.trusted(time.Now())
	if trusted {
		p := c.redis.get(ctx, key)
		if p == nil || c.follow.adopt(p, pair) {
			return p
		}
		if !useStale {
			return nil
		}
	}
	p := c.redis.getAged(ctx, key)
	if p == nil || trusted && c.follow.adopt(p, pair) { // it may have been replaced
		return p
	}
	if c.follow.on() { // which server had it is not known: it is no answer to be shared
		if unshared := time.Now().Add(-c.follow.bound / shareFactor); unshared.Before(p.Proof) {
			p.Proof = unshared
		}
	}
	return p
}

// fleetWaits is how long a node waits, time after time, for the page that
// another one is reading; then it asks the database itself.
var fleetWaits = [...]time.Duration{3 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond}

// fromFleet has one node of all that miss a page at once read it. It returns
// the page that another one read, or nil for the one that is to.
func (c *Cache) fromFleet(ctx context.Context, key []byte, pair changefeed.List) *Entry {
	if c.redis == nil || !c.follow.on() {
		return nil
	}
	mine := c.redis.claim(ctx, key)
	for _, wait := range fleetWaits {
		// Whose turn it is looks once more, too: the one before may just have ended.
		if p := c.fromRedis(ctx, key, pair, false); p != nil && c.judge(p, time.Now()) == fresh {
			if mine {
				c.release(key)
			}
			return p
		}
		if mine {
			break
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
	return nil
}
