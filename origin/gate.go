package origin

import (
	"context"
	"fmt"
	"sync"

	"github.com/google/uuid"
)

// queueFactor bounds the queue: beyond this many waiting queries for each
// running one, waiting would outlast the callers' patience.
const queueFactor = 8

// gate lets a number of queries run at once and a bounded number wait, and is
// fair by workspace: a free place goes to the workspaces that wait in turn,
// whatever number of queries each of them has. No workspace may have more than
// half of the queue.
type gate struct {
	size int

	mu      sync.Mutex // guards all below
	running int
	waiting int
	queues  map[uuid.UUID][]chan struct{} // never empty ones
	turns   []uuid.UUID                   // the workspaces with a queue, next first
}

func newGate(size int) *gate { return &gate{size: size, queues: map[uuid.UUID][]chan struct{}{}} }

// enter returns nil with a place taken, ErrOverloaded when the queue is full,
// or the context's end as ErrOverloaded.
func (g *gate) enter(ctx context.Context, workspace uuid.UUID) error {
	g.mu.Lock()
	if g.running < g.size {
		g.running++
		g.mu.Unlock()
		return nil
	}
	room := g.size * queueFactor
	queue := g.queues[workspace]
	if g.waiting >= room || len(queue) >= max(1, room/2) {
		g.mu.Unlock()
		return ErrOverloaded
	}
	place := make(chan struct{})
	if len(queue) == 0 {
		g.turns = append(g.turns, workspace)
	}
	g.queues[workspace] = append(queue, place)
	g.waiting++
	g.mu.Unlock()

	select {
	case <-place:
		return nil
	case <-ctx.Done():
		if !g.withdraw(workspace, place) {
			g.leave() // it was given in the same moment
		}
		return fmt.Errorf("%w: %w", ErrOverloaded, ctx.Err())
	}
}

// withdraw takes a waiting query out of its queue; false if it waits no more.
func (g *gate) withdraw(workspace uuid.UUID, place chan struct{}) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, p := range g.queues[workspace] {
		if p == place {
			g.queues[workspace] = append(g.queues[workspace][:i:i], g.queues[workspace][i+1:]...)
			g.waiting--
			if len(g.queues[workspace]) == 0 {
				g.endTurns(workspace)
			}
			return true
		}
	}
	return false
}

func (g *gate) endTurns(workspace uuid.UUID) {
	delete(g.queues, workspace)
	for i, w := range g.turns {
		if w == workspace {
			g.turns = append(g.turns[:i], g.turns[i+1:]...)
			return
		}
	}
}

// leave gives the place to the next workspace's oldest query, or frees it.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.turns) == 0 {
		g.running--
		return
	}
	workspace := g.turns[0]
	g.turns = g.turns[1:]
	queue := g.queues[workspace]
	close(queue[0])
	g.waiting--
	if queue = queue[1:]; len(queue) == 0 {
		delete(g.queues, workspace)
		return
	}
	g.queues[workspace] = queue
	g.turns = append(g.turns, workspace)
}

// load is how many queries run and how many wait.
func (g *gate) load() (running, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running, g.waiting
}
