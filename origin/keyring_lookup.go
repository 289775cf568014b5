package origin

import (
	"context"
	"errors"
)

// Bounds of what the keys that requests wait for cost Postgres. One query of a
// node is under way at a time. A query that finds all its keys costs a key of the
// table each; those that ask in vain, which anybody can cause, are limited:
// within t seconds a node makes at most vainBurst + vainPerSecond·t of them, with
// at most lookupBatch keys each.
const (
	lookupBatch   = 1000   // keys in one query
	lookupBacklog = 10_000 // keys of one priority that wait; beyond: ErrOverloaded
	vainPerSecond = 50
	vainBurst     = 50
	// lookupShare of each query is for a priority, whatever waits before it: the
	// last of a full backlog is asked for after 40 queries, 0.8 s.
	lookupShare = lookupBatch / 4
)

// lookupPriority orders the keys that wait. Within one they are asked for in the
// order in which they came.
type lookupPriority uint8

const (
	known    lookupPriority = iota // of late, to this node
	ordinary                       // new to this node
	suspect                        // new, of a client whose keys were unknown again and again
	priorities
)

// lookupQueue holds the keys that wait to be asked for, each once.
type lookupQueue struct {
	calls  map[KeyHash]*lookupCall
	queued [priorities][]KeyHash
}

type lookupCall struct {
	done chan struct{} // closed when err is set
	err  error
}

// join returns the key's call, a new one if there is none; nil = the backlog is full.
func (q *lookupQueue) join(hash KeyHash, p lookupPriority) *lookupCall {
	call := q.calls[hash]
	if call == nil && len(q.queued[p]) < lookupBacklog {
		call = &lookupCall{done: make(chan struct{})}
		q.calls[hash] = call
		q.queued[p] = append(q.queued[p], hash)
	}
	return call
}

// next takes the keys of the next query from the queue.
func (q *lookupQueue) next() map[KeyHash]*lookupCall {
	batch := map[KeyHash]*lookupCall{}
	for p, waiting := range q.queued {
		room := lookupBatch - len(batch)
		for _, later := range q.queued[p+1:] {
			room -= min(len(later), lookupShare)
		}
		n := min(len(waiting), room)
		for _, hash := range waiting[:n] {
			batch[hash] = q.calls[hash]
			delete(q.calls, hash)
		}
		if q.queued[p] = waiting[n:]; n == len(waiting) {
			q.queued[p] = nil
		}
	}
	return batch
}

// ask joins the key's waiters and returns when it has been looked up.
func (r *Keyring[T]) ask(ctx context.Context, hash KeyHash, p lookupPriority) error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return ErrUnavailable
	}
	call := r.queue.join(hash, p)
	if call == nil {
		r.mu.Unlock()
		return ErrOverloaded
	}
	if !r.asking {
		r.asking = true
		r.done.Add(1)
		go r.answer()
	}
	r.mu.Unlock()
	select {
	case <-call.done:
		return call.err
	case <-ctx.Done():
		return errors.Join(ErrUnavailable, ctx.Err())
	}
}

// answer looks up what waits, query by query, until nothing does. While one is
// under way, the keys of the next gather.
func (r *Keyring[T]) answer() {
	defer r.done.Done()
	for {
		r.mu.Lock()
		batch := r.queue.next()
		r.asking = len(batch) > 0
		r.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		hashes := make([]KeyHash, 0, len(batch))
		for hash := range batch {
			hashes = append(hashes, hash)
		}
		err := r.update(hashes)
		vain := false
		for hash, call := range batch {
			if call.err = err; err == nil && r.find(hash) == nil {
				call.err, vain = ErrUnknownKey, true
			}
			close(call.done)
		}
		if vain {
			_ = r.pace.Wait(r.ctx) // which ends with Close, and then look-ups fail at once
		}
	}
}
