package apikey

import (
	"context"
	"errors"
	"time"

	"listedge/origin/postgres"
)

// These constants bound the load on Postgres from keys that are not in memory. A
// node has one query in flight at a time. A query costs one index look-up for each
// key. Anybody can send unknown keys, so the rate of queries that meet one is
// limited: a node makes at most unknownQueryBurst + unknownQueriesPerSecond·t of
// them within t seconds.
const (
	lookupBatch             = 1000   // keys in one query
	lookupBacklog           = 10_000 // waiting keys of one priority; further ones fail with ErrOverloaded
	unknownQueriesPerSecond = 50
	unknownQueryBurst       = 50
	// lookupShare is how many keys of a query are reserved for each priority that
	// has keys waiting. So the last key of a full backlog is looked up after 40
	// queries, 0.8 s.
	lookupShare = lookupBatch / 4
)

// lookupPriority orders the waiting keys. Keys of one priority are looked up
// first in, first out.
type lookupPriority uint8

const (
	knownKey    lookupPriority = iota // has an entry
	ordinaryKey                       // new to this node
	suspectKey                        // new, from a client that sent too many unknown keys
	lookupPriorities
)

// lookupQueue holds the keys that wait for a look-up. It holds each key once.
type lookupQueue struct {
	calls  map[Hash]*lookupCall
	queued [lookupPriorities][]Hash
}

type lookupCall struct {
	done chan struct{} // closed when err is set
	err  error
}

// join returns the key's waiting call, or adds one. It returns nil if the backlog
// is full.
func (q *lookupQueue) join(hash Hash, p lookupPriority) *lookupCall {
	call := q.calls[hash]
	if call == nil && len(q.queued[p]) < lookupBacklog {
		call = &lookupCall{done: make(chan struct{})}
		q.calls[hash] = call
		q.queued[p] = append(q.queued[p], hash)
	}
	return call
}

// next takes the keys of the next query from the queue.
func (q *lookupQueue) next() (batch []Hash, calls []*lookupCall) {
	for p, waiting := range q.queued {
		room := lookupBatch - len(batch)
		for _, lower := range q.queued[p+1:] {
			room -= min(len(lower), lookupShare)
		}
		n := min(len(waiting), room)
		for _, hash := range waiting[:n] {
			batch, calls = append(batch, hash), append(calls, q.calls[hash])
			delete(q.calls, hash)
		}
		if q.queued[p] = waiting[n:]; n == len(waiting) {
			q.queued[p] = nil
		}
	}
	return batch, calls
}

// await queues the key and waits until it has been looked up. One query looks up
// many waiting keys.
func (c *Cache[T]) await(ctx context.Context, hash Hash, p lookupPriority) error {
	c.mu.Lock()
	if c.ctx.Err() != nil {
		c.mu.Unlock()
		return postgres.ErrUnavailable
	}
	call := c.queue.join(hash, p)
	if call == nil {
		c.mu.Unlock()
		return postgres.ErrOverloaded
	}
	if !c.running {
		c.running = true
		c.done.Go(c.runLookups)
	}
	c.mu.Unlock()
	select {
	case <-call.done:
		return call.err
	case <-ctx.Done():
		return errors.Join(postgres.ErrUnavailable, ctx.Err())
	}
}

// runLookups makes query after query until no key waits. The keys of the next
// query gather while one is in flight.
func (c *Cache[T]) runLookups() {
	for {
		c.mu.Lock()
		batch, calls := c.queue.next()
		c.running = len(batch) > 0
		c.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		err := c.update(batch)
		unknown := false
		for i, call := range calls {
			if call.err = err; err == nil && c.find(batch[i]) == nil {
				call.err, unknown = ErrUnknown, true
			}
			close(call.done)
		}
		if unknown {
			_ = c.unknownLimiter.Wait(c.ctx) // Close ends c.ctx, and then look-ups fail at once
		}
	}
}

// update looks the keys up in one query and stores the result.
func (c *Cache[T]) update(hashes []Hash) error {
	ctx, cancel := context.WithTimeout(c.ctx, lookupTimeout)
	defer cancel()
	began := time.Now()
	found, err := c.lookup(ctx, hashes, c.proof.Load().runAt(c.clock.Now()))
	if !errors.Is(err, errNotAsked) {
		c.queries.Add(1)
	}
	if err != nil {
		if errors.Is(err, postgres.ErrWrongServer) {
			c.wrongServer.Store(true)
		}
		return err
	}
	c.wrongServer.Store(false)
	for _, hash := range hashes {
		key, exists := found[hash]
		c.store(hash, key, exists, c.clock.Of(began))
	}
	return nil
}

// store keeps the result of a look-up, unless a look-up that began later has
// already stored its own. began is when this look-up began.
func (c *Cache[T]) store(hash Hash, key Key, exists bool, began time.Duration) {
	c.entriesMu.Lock()
	defer c.entriesMu.Unlock()
	before := c.entries[hash]
	switch {
	case before != nil && time.Duration(before.validatedAt.Load()) > began:
		return
	case !exists:
		c.evict(before)
		return
	case before != nil && before.Key == key:
		before.validatedAt.Store(int64(began))
		return
	}
	e := &Entry[T]{Key: key, hash: hash, lastUsed: began}
	e.validatedAt.Store(int64(began))
	e.used.Store(true)
	e.invalidatedAt.Store(int64(c.changedAt)) // it may have been of this key, which was not in rows yet
	c.attach(key, &e.Value)
	c.evict(before)
	c.entries[hash] = e
	for _, id := range e.rows() {
		c.rows[id] = append(c.rows[id], e)
	}
}
