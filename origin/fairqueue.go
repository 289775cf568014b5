package origin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"listedge/origin/postgres"
)

const (
	// queueFactor bounds the queue: with more waiting queries than this for each
	// slot, waiting would outlast the callers' time limits.
	queueFactor = 8
	// recently is how long a tenant counts as active after its last query.
	recently = time.Second
	// growInterval is the time between two tries whether a server that gave no more connections
	// gives one again.
	growInterval = time.Second
)

// fairQueue has a number of slots for queries that run, and a bounded queue of
// those that wait. It is fair by tenant (page.Query.Tenant):
//
//   - A free slot goes to the waiting tenant with the least service time, however
//     many queries it has and however long they take.
//   - A tenant may fill half of the queue. When the queue is full, the tenant with
//     most queries in it loses its newest one to a tenant that has fewer.
//   - A tenant may use half of the slots while others are active. So their queries
//     find a free slot, and not a server that is busy with one tenant.
//
// virtualTime is the service time that the last dispatched tenant had at its
// dispatch: no waiting tenant had less. A tenant that becomes active starts from
// it, so idle time earns no credit. virtualTime never decreases, and grows by at
// least 1/(queueFactor+1) of the time that passes: however many new tenants come,
// the turn of each waiting query comes.
//
// There are fewer slots while the server gives fewer connections.
type fairQueue struct {
	most     int       // slots if the server gives all connections
	capacity int       // how many queries may wait
	started  time.Time // times below are since then

	mu          sync.Mutex // guards all below
	slots       int
	resized     time.Duration // when slots changed last
	running     int
	waiting     []*waiter // the oldest first
	virtualTime time.Duration
	dispatched  time.Duration      // when a query was dispatched last
	tenants     map[string]*tenant // idle ones may be missing
	lastTenant  *tenant            // of the newest query
	lastEntered time.Duration      // when that query called enter
	sharedUntil time.Duration      // more than one tenant counts as active until then
}

// tenant is a tenant's part of the queue.
type tenant struct {
	settled time.Duration // service time of its ended queries, and what raised it to virtualTime
	running int
	begins  time.Duration // sum of the starting times of its running queries
	waiting int           // how many of its queries wait
}

// waiter is a query that waits for a slot.
type waiter struct {
	tenant *tenant
	began  chan time.Duration // gets the moment at which it has a slot, or is closed if it is refused
}

// serviceTime is how long the tenant's queries have run, running ones up to now.
// It is continuous: it does not jump when a query begins or ends.
func (t *tenant) serviceTime(now time.Duration) time.Duration {
	return t.settled + time.Duration(t.running)*now - t.begins
}

func newFairQueue(slots int) *fairQueue {
	return &fairQueue{most: slots, slots: slots, capacity: slots * queueFactor, started: time.Now(), tenants: map[string]*tenant{}}
}

func (q *fairQueue) now() time.Duration { return time.Since(q.started) }

// enter waits for a slot, and returns when it was taken, for leave. It returns
// ErrOverloaded when the queue is full, or ctx ends first.
func (q *fairQueue) enter(ctx context.Context, name string) (began time.Duration, err error) {
	q.mu.Lock()
	now := q.now()
	t := q.tenant(name, now)
	w := &waiter{tenant: t, began: make(chan time.Duration, 1)}
	q.waiting = append(q.waiting, w)
	t.waiting++
	q.dispatch(now)
	if t.waiting > q.capacity/2 || len(q.waiting) > q.capacity {
		q.refuse()
	}
	q.mu.Unlock()
	return q.await(ctx, name, w)
}

// await waits until a waiting query has a slot.
func (q *fairQueue) await(ctx context.Context, name string, w *waiter) (began time.Duration, err error) {
	select {
	case began, ok := <-w.began:
		if !ok {
			return 0, postgres.ErrOverloaded
		}
		return began, nil
	case <-ctx.Done():
		if !q.withdraw(w) { // it was decided in the same moment
			if began, ok := <-w.began; ok {
				q.leave(name, began)
			}
		}
		return 0, fmt.Errorf("%w: %w", postgres.ErrOverloaded, ctx.Err())
	}
}

// leave frees the slot that was taken at began.
func (q *fairQueue) leave(name string, began time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	q.free(name, began, now)
	q.dispatch(now)
}

func (q *fairQueue) free(name string, began, now time.Duration) *tenant {
	q.running--
	t := q.tenants[name]
	t.running--
	t.begins -= began
	t.settled += now - began
	return t
}

// enterIdle takes a slot for a query that nobody waits for: one of no tenant. It says whether it did: it does not
// while a query waits, or as many run as half of the slots.
func (q *fairQueue) enterIdle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	idle := len(q.waiting) == 0 && 2*q.running < q.slots
	if idle {
		q.running++
	}
	return idle
}

// leaveIdle frees that slot.
func (q *fairQueue) leaveIdle() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running--
	q.dispatch(q.now())
}

// reenter gives up a slot for which the server has no connection, and waits for one of the queries
// that have one. It is never refused, because the query has waited before.
func (q *fairQueue) reenter(ctx context.Context, name string, began time.Duration) (time.Duration, error) {
	q.mu.Lock()
	now := q.now()
	w := &waiter{tenant: q.free(name, began, now), began: make(chan time.Duration, 1)}
	w.tenant.waiting++
	q.waiting = slices.Insert(q.waiting, 0, w)
	q.slots, q.resized = max(1, min(q.slots, q.running)), now
	q.dispatch(now)
	q.mu.Unlock()
	return q.await(ctx, name, w)
}

// load returns how many queries run and how many wait.
func (q *fairQueue) load() (running, waiting int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.running, len(q.waiting)
}

// tenant returns the tenant of a new query.
func (q *fairQueue) tenant(name string, now time.Duration) *tenant {
	t := q.tenants[name]
	if t == nil {
		if len(q.tenants) > q.most+q.capacity { // idle ones are forgotten that would start from virtualTime anyway, and all when no query waits
			maps.DeleteFunc(q.tenants, func(_ string, t *tenant) bool {
				return t.running == 0 && t.waiting == 0 && (len(q.waiting) == 0 || t.settled <= q.virtualTime)
			})
		}
		t = &tenant{}
		q.tenants[name] = t
	}
	if t.waiting == 0 {
		t.settled += max(0, q.virtualTime-t.serviceTime(now))
	}
	if q.lastTenant != t && q.lastTenant != nil && now < q.lastEntered+recently {
		q.sharedUntil = now + recently
	}
	q.lastTenant, q.lastEntered = t, now
	return t
}

// refuse makes room for a query: it refuses the newest one of the tenant that has the most waiting.
func (q *fairQueue) refuse() {
	last := 0
	for i, w := range q.waiting {
		if w.tenant.waiting >= q.waiting[last].tenant.waiting {
			last = i
		}
	}
	close(q.remove(last).began)
}

// withdraw removes a waiting query. It returns false if the query no longer waits.
func (q *fairQueue) withdraw(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting, w)
	if i >= 0 {
		q.remove(i)
	}
	return i >= 0
}

func (q *fairQueue) remove(i int) *waiter {
	w := q.waiting[i]
	q.waiting = slices.Delete(q.waiting, i, i+1)
	w.tenant.waiting--
	return w
}

// dispatch gives free slots to waiting queries: of the tenants with the least service time, the
// oldest first. A tenant that has all slots it may use waits until one of its queries ends.
func (q *fairQueue) dispatch(now time.Duration) {
	if q.slots < q.most && q.running == q.slots && now >= q.resized+growInterval {
		q.slots, q.resized = q.slots+1, now
	}
	limit := q.slots
	if now < q.sharedUntil {
		limit -= q.slots / 2
	}
	for q.running < q.slots {
		next := -1
		for i, w := range q.waiting {
			if w.tenant.running < limit && (next < 0 || w.tenant.serviceTime(now) < q.waiting[next].tenant.serviceTime(now)) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		w := q.remove(next)
		q.virtualTime = max(w.tenant.serviceTime(now), q.virtualTime+(now-q.dispatched)/(queueFactor+1))
		q.dispatched = now
		q.running++
		w.tenant.running++
		w.tenant.begins += now
		w.began <- now
	}
}
