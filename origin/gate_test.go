package origin

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
)

// One workspace fills what it may; another's query is the next to run.
func TestTheGateIsFairByWorkspace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(2)
		greedy, modest := uuid.UUID{1}, uuid.UUID{2}
		order := make(chan uuid.UUID, 100)
		enter := func(w uuid.UUID) {
			go func() {
				if err := g.enter(context.Background(), w); err == nil {
					order <- w
				}
			}()
			synctest.Wait()
		}
		for range 2 + 2*queueFactor {
			enter(greedy)
		}
		if running, waiting := g.load(); running != 2 || waiting != queueFactor {
			t.Fatalf("%d run and %d wait: one workspace may have half of the queue", running, waiting)
		}
		if err := g.enter(context.Background(), greedy); !errors.Is(err, ErrOverloaded) {
			t.Fatalf("beyond half of the queue: %v", err)
		}
		for range 3 {
			enter(modest)
		}
		for range 2 {
			<-order
		}
		var served []uuid.UUID
		for range 6 {
			g.leave()
			served = append(served, <-order)
		}
		for i, w := range served {
			if want := []uuid.UUID{greedy, modest}[i%2]; w != want {
				t.Fatalf("turn %d is %v's: %v", i, w, served)
			}
		}
		for running, _ := g.load(); running > 0; running, _ = g.load() {
			g.leave()
		}
		if len(g.queues) != 0 || len(g.turns) != 0 {
			t.Errorf("left behind: %v %v", g.queues, g.turns)
		}
	})
}

func TestAQueryThatGivesUpWaitingLeavesNoTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1)
		if err := g.enter(context.Background(), uuid.UUID{1}); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			if err := g.enter(ctx, uuid.UUID{byte(i)}); !errors.Is(err, ErrOverloaded) {
				t.Error(err)
			}
			cancel()
		}
		if running, waiting := g.load(); running != 1 || waiting != 0 || len(g.queues) != 0 || len(g.turns) != 0 {
			t.Errorf("%d run, %d wait, %v, %v", running, waiting, g.queues, g.turns)
		}
		g.leave()
		if running, _ := g.load(); running != 0 {
			t.Error("the place is not free")
		}
	})
}
