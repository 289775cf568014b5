package origin

import (
	"context"
	"fmt"
	"sync/atomic"
)

// queueFactor bounds the queue: beyond this many waiting queries for each
// running one, waiting would outlast the callers' patience.
const queueFactor = 8

// gate lets a number of queries run at once and a bounded number wait.
type gate struct {
	slots   chan struct{}
	waiting atomic.Int64
}

func newGate(size int) *gate { return &gate{slots: make(chan struct{}, size)} }

// enter returns nil with a slot taken, ErrOverloaded when the queue is full,
// or the context's end as ErrOverloaded.
func (g *gate) enter(ctx context.Context) error {
	select {
	case g.slots <- struct{}{}:
		return nil
	default:
	}
	defer g.waiting.Add(-1)
	if g.waiting.Add(1) > int64(cap(g.slots)*queueFactor) {
		return ErrOverloaded
	}
	select {
	case g.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrOverloaded, ctx.Err())
	}
}

func (g *gate) leave()       { <-g.slots }
func (g *gate) running() int { return len(g.slots) }
func (g *gate) queued() int  { return int(g.waiting.Load()) }
