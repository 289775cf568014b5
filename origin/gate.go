package origin

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"
)

// queueFactor bounds the queue: beyond this many waiting queries for each
// running one, waiting would outlast the callers' patience.
const queueFactor = 8

// lately is for how long who has asked is expected to ask again.
const lately = time.Second

// gate lets a number of queries run at once and a bounded number wait, and is
// fair by workspace: a free place goes to the one that has had least of the
// places' time, of those that wait, whatever number of queries each of them has
// and however long they take. No workspace may have more than half of the queue,
// and where that is full, who has most of it makes room for who has less. Nor
// may one have more than half of the places while others ask, too: theirs need
// not wait for one of its queries to end, and are not one of so many at the
// server, which takes longer.
type gate struct {
	size int
	made time.Time

	mu      sync.Mutex // guards all below
	running int
	waiting int
	clock   clock
	shares  map[uuid.UUID]*share // not all of those that are idle
	asker   *share               // the last
	asked   time.Duration        // when it did
	others  time.Duration        // until when another than that is expected to ask
	looks   bool                 // again, once that has passed
}

func newGate(size int) *gate {
	return &gate{size: size, made: time.Now(), shares: map[uuid.UUID]*share{}}
}

func (g *gate) now() time.Duration { return time.Since(g.made) }

// room is how many queries may wait.
func (g *gate) room() int { return g.size * queueFactor }

// enter returns with a place taken, and when that was, for leave; or
// ErrOverloaded when the queue is full of others' queries, or of its own, or the
// context's end as ErrOverloaded.
func (g *gate) enter(ctx context.Context, workspace uuid.UUID) (began time.Duration, err error) {
	g.mu.Lock()
	now := g.now()
	s := g.share(workspace, now)
	if g.running < g.size && len(s.waiting) == 0 && s.running < g.most(now) {
		g.begin(s, now)
		g.mu.Unlock()
		return now, nil
	}
	if len(s.waiting) >= max(1, g.room()/2) || g.waiting >= g.room() && !g.makeRoom(s) {
		g.mu.Unlock()
		return 0, ErrOverloaded
	}
	p := &place{asked: now, decided: make(chan struct{})}
	s.waiting = append(s.waiting, p)
	g.waiting++
	g.give(now)
	g.mu.Unlock()

	select {
	case <-p.decided:
		if p.refused {
			return 0, ErrOverloaded
		}
		return p.began, nil
	case <-ctx.Done():
		if !g.withdraw(s, p) && !p.refused {
			g.leave(workspace, p.began) // it was given in the same moment
		}
		return 0, fmt.Errorf("%w: %w", ErrOverloaded, ctx.Err())
	}
}

// makeRoom refuses the youngest query of whoever has most of the queue, unless
// that is no more than s will have.
func (g *gate) makeRoom(s *share) bool {
	most := s
	for _, o := range g.shares {
		if len(o.waiting) > len(most.waiting) {
			most = o
		}
	}
	last := len(most.waiting) - 1
	if last <= len(s.waiting) {
		return false
	}
	p := most.waiting[last]
	most.waiting = most.waiting[:last]
	g.waiting--
	p.refused = true
	close(p.decided)
	return true
}

// share is that of a workspace which wants a place.
func (g *gate) share(workspace uuid.UUID, now time.Duration) *share {
	s := g.shares[workspace]
	if s == nil {
		g.forget()
		s = &share{}
		g.shares[workspace] = s
	}
	if len(s.waiting) == 0 {
		s.comeIn(g.clock.reads, now)
	}
	if g.asker != s && g.asker != nil && now < g.asked+lately {
		g.others = now + lately
	}
	g.asker, g.asked = s, now
	return s
}

// most is how many places one workspace may have.
func (g *gate) most(now time.Duration) int {
	if now < g.others {
		return g.size - g.size/2
	}
	return g.size
}

// forget drops shares when there are many: of idle workspaces that have had no
// more than who comes in, or that took nothing from anybody.
func (g *gate) forget() {
	if len(g.shares) > g.size+g.room() {
		maps.DeleteFunc(g.shares, func(_ uuid.UUID, s *share) bool {
			return s.idle() && (g.waiting == 0 || s.settled <= g.clock.reads)
		})
	}
}

func (g *gate) begin(s *share, now time.Duration) {
	g.clock = g.clock.next(s.had(now), now)
	g.running++
	s.begin(now)
}

// withdraw takes a waiting query out of its queue; false if it waits no more.
func (g *gate) withdraw(s *share, p *place) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range s.waiting {
		if s.waiting[i] == p {
			s.waiting = append(s.waiting[:i:i], s.waiting[i+1:]...)
			g.waiting--
			return true
		}
	}
	return false
}

// leave ends a query, and gives its place, and others that are free, to those
// whose turn it is.
func (g *gate) leave(workspace uuid.UUID, began time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	g.running--
	g.shares[workspace].end(began, now)
	g.give(now)
}

// give has those run whose turn it is, as far as there are places; and where
// those that wait have as many as they may, looks again when they may have more.
func (g *gate) give(now time.Duration) {
	for g.running < g.size && g.waiting > 0 {
		s := g.next(now)
		if s == nil {
			if !g.looks && g.others > now {
				g.looks = true
				time.AfterFunc(g.others-now, g.look)
			}
			return
		}
		p := s.waiting[0]
		s.waiting = s.waiting[1:]
		g.waiting--
		g.begin(s, now)
		p.began = now
		close(p.decided)
	}
}

// look is for when nobody else has asked for a while: those who wait may have
// all places, and it may be long until one of theirs is left.
func (g *gate) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.looks = false
	g.give(g.now())
}

// next is the workspace whose oldest query is the next to run; nil if those that
// wait have as many places as they may.
func (g *gate) next(now time.Duration) (next *share) {
	most := g.most(now)
	for _, s := range g.shares {
		if len(s.waiting) > 0 && s.running < most && (next == nil || s.before(next, now)) {
			next = s
		}
	}
	return next
}

// load is how many queries run and how many wait.
func (g *gate) load() (running, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running, g.waiting
}
