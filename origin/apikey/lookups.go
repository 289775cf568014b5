package apikey

import (
	"context"
	"errors"
	"time"

	"listedge/origin/postgres"
)

// Bounds of what requests with keys that are not in memory cost Postgres. A node
// has one query in flight at a time. A query that finds all its keys costs an
// index look-up for each. Queries for unknown keys, which anybody can cause, are
// limited: within t seconds a node makes at most
// unknownQueryBurst + unknownQueriesPerSecond·t of them.
const (
	lookupBatch             = 1000   // keys in one query
	lookupBacklog           = 10_000 // keys of one priority that wait; beyond: ErrOverloaded
	unknownQueriesPerSecond = 50
	unknownQueryBurst       = 50
	// lookupShare of each query is reserved for each priority that waits: the last
	// key of a full backlog is looked up after 40 queries, 0.8 s.
	lookupShare = lookupBatch / 4
)

// lookupPriority orders the keys that wait. Keys of one priority are looked up
// in the order in which they came.
type lookupPriority uint8

const (
	knownKey    lookupPriority = iota // has an entry
	ordinaryKey                       // new to this node
	suspectKey                        // new, from a client that sent too many unknown keys
	priorities
)

// lookupQueue holds the keys that wait to be looked up, each once.
type lookupQueue struct {
	calls  map[Hash]*lookupCall
	queued [priorities][]Hash
}

type lookupCall struct {
	done chan struct{} // closed when err is set
	err  error
}

// join returns the key's call, a new one if there is none; nil = the backlog is full.
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

// await returns when the key has been looked up, with others that wait.
func (c *Cache[T]) await(ctx context.Context, hash Hash, p lookupPriority) error {
	c.mu.Lock()
	if c.closed {
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
			_ = c.pace.Wait(c.ctx) // which ends with Close, and then look-ups fail at once
		}
	}
}

// update looks the keys up in one query and stores what it found.
func (c *Cache[T]) update(hashes []Hash) error {
	ctx, cancel := context.WithTimeout(c.ctx, lookupTimeout)
	defer cancel()
	began := time.Now()
	c.queries.Add(1)
	found, err := c.lookup(ctx, hashes, c.proof.Load().runAt(c.clock.Now()))
	if err != nil {
		if errors.Is(err, postgres.ErrWrongServer) {
			c.wrongServer.Store(true)
		}
		return err
	}
	c.wrongServer.Store(false)
	for _, hash := range hashes {
		key, exists := found[hash]
		if c.store(hash, key, exists, c.clock.Of(began)) {
			c.unknown.Remove(hash)
		} else {
			c.unknown.Add(hash, began.Add(unknownTTL))
		}
	}
	return nil
}

// store keeps what a look-up found that began at that moment, unless a later one
// has answered before. It says whether the key is known now.
func (c *Cache[T]) store(hash Hash, key Key, exists bool, began time.Duration) (known bool) {
	s := c.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.entries[hash]
	switch {
	case before != nil && time.Duration(before.validatedAt.Load()) > began:
		return true
	case !exists:
		c.evict(s, before)
		return false
	case before != nil && before.Key == key:
		before.validatedAt.Store(int64(began))
		before.lookedUp = began
		return true
	}
	e := &Entry[T]{Key: key, hash: hash, lookedUp: began, lastUsed: began}
	e.validatedAt.Store(int64(began))
	e.used.Store(true)
	e.invalidatedAt.Store(int64(never))
	if before != nil {
		e.invalidatedAt.Store(before.invalidatedAt.Load())
	} else if s.changedAt >= began { // maybe by a change of this key, which rows did not have yet
		e.invalidatedAt.Store(int64(s.changedAt))
	}
	c.attach(key, &e.Value)
	c.evict(s, before)
	s.entries[hash] = e
	for _, id := range e.rows() {
		s.rows[id] = append(s.rows[id], e)
	}
	c.size.Add(1)
	return true
}
