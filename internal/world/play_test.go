package world_test

import (
	"flag"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/world"
)

var (
	worldSeed  = flag.Uint64("world-seed", 0, "play this world, and print its trace; 0 = play the fixed set")
	worldSteps = flag.Int("world-steps", 1500, "how long a world lasts")
	worldTime  = flag.Duration("world-time", 0, "play worlds of new seeds for so long; 0 = the fixed set")
)

// played is what came of a world.
type played struct {
	counts map[string]int
	steps  int
	lived  time.Duration // of all nodes together
	broken string        // the first sentence that does not hold, and how; empty = all hold
}

// game plays a world to its end, in a bubble.
type game func(of world.Play) played

// playPages plays a world of pages.
func playPages(of world.Play) played {
	w := inhabit(of)
	return played{w.counts, w.steps, w.lived * nodes, w.broken}
}

// play plays a world in a bubble.
func (g game) play(t *testing.T, of world.Play) (w played) {
	startDate()
	synctest.Test(t, func(*testing.T) { w = g(of) })
	return w
}

// TestWorld plays worlds of some seeds, and shrinks one in which a promise is broken.
func TestWorld(t *testing.T) {
	game(playPages).test(t, []string{"walks", "no-cache", "stale", "memory", "origin", "errors", "rounds", "rounds: delta", "rounds: gone", "rounds: whole, epoch",
		"rounds: whole, unnamed", "rounds: the changes are not proven"},
		"rounds: cut", "rounds: by key", "rounds: by key, cut", "rounds: none, from before the log", "rounds: whole, dropped", "rounds: whole, joined",
		"rounds: the page is not stored", "answers 304", "answers 429", "answers 503", "answers 504", "drains", "usage written")
}

// TestWorldOfLimits does so with worlds that have nothing but limits, and longer times.
func TestWorldOfLimits(t *testing.T) {
	game(playLimits).test(t, []string{"lease", "redis", "local_fallback", "calls"})
}

// test plays as the flags say. In the fixed set it expects often once a world, and seldom once in twenty.
func (g game) test(t *testing.T, often []string, seldom ...string) {
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // worlds are small and make much garbage
	switch {
	case *worldSeed > 0:
		g.playOne(t, *worldSeed)
	case *worldTime > 0:
		from := uint64(time.Now().UnixNano())
		g.playMany(t, from, func(seed uint64, took time.Duration) bool { return took < *worldTime })
	default:
		total := g.playMany(t, 1, func(seed uint64, _ time.Duration) bool { return seed <= worldsInTests })
		for _, what := range slices.Concat(often, seldom) {
			least := worldsInTests
			if slices.Contains(seldom, what) {
				least /= 20
			}
			if !t.Failed() && total[what] < least {
				t.Errorf("%d %s in %d worlds", total[what], what, worldsInTests)
			}
		}
	}
}

// alone has one goroutine run at a time, so that all that a limiter does at one moment is done in the same order, too.
func alone() (restore func()) {
	before := runtime.GOMAXPROCS(1)
	return func() { runtime.GOMAXPROCS(before) }
}

// playOne prints the trace of a seed.
func (g game) playOne(t *testing.T, seed uint64) {
	defer alone()()
	w := g.play(t, world.Play{Seed: seed, Steps: *worldSteps, Log: os.Stdout})
	if w.broken != "" {
		t.Errorf("seed %d, step %d: %s", seed, w.steps, w.broken)
		g.shrink(t, seed)
	}
}

// shrink prints the trace of the smallest part of a world in which a promise is broken.
func (g game) shrink(t *testing.T, seed uint64) {
	smallest, left := world.Shrink(world.Play{Seed: seed, Steps: *worldSteps}, 500_000, func(of world.Play) (steps int) {
		w := g.play(t, of)
		if w.broken != "" {
			steps = w.steps
		}
		return steps
	})
	var trace strings.Builder
	smallest.Log = &trace
	w := g.play(t, smallest)
	lines := strings.Split(trace.String(), "\n")
	t.Logf("the smallest part, with %d events in %d steps, %s:\n%s\n%v", len(left), w.steps, w.broken, strings.Join(lines[max(0, len(lines)-200):], "\n"), left)
}

// playMany plays seeds on all processors while it goes on, until one fails.
func (g game) playMany(t *testing.T, from uint64, goesOn func(seed uint64, took time.Duration) bool) (total map[string]int) {
	var (
		mu      sync.Mutex
		playing sync.WaitGroup
		next    = from
		lived   time.Duration
		began   = time.Now()
	)
	total = map[string]int{}
	for range runtime.GOMAXPROCS(0) {
		playing.Go(func() {
			for {
				mu.Lock()
				seed := next
				next++
				mu.Unlock()
				if t.Failed() || !goesOn(seed, time.Since(began)) {
					return
				}
				w := g.play(t, world.Play{Seed: seed, Steps: *worldSteps})
				mu.Lock()
				for what, n := range w.counts {
					total[what] += n
				}
				lived += w.lived
				if w.broken != "" && !t.Failed() {
					t.Errorf("seed %d, step %d: %s\nmake world SEED=%d shows it", seed, w.steps, w.broken, seed)
				}
				mu.Unlock()
			}
		})
	}
	playing.Wait()
	for _, what := range slices.Sorted(maps.Keys(total)) {
		t.Logf("%8d %s", total[what], what)
	}
	t.Logf("%d worlds, %.2f hours of a node in %s", next-from, lived.Hours(), time.Since(began).Round(time.Second))
	return total
}

// A world that fails is shrunk to what makes it fail: here three checkpoints.
func TestAWorldIsShrunk(t *testing.T) {
	stores := func(of world.Play) (steps int) {
		w := game(playPages).play(t, of)
		if w.counts["checkpoints"] >= 3 {
			steps = of.Steps
		}
		return steps
	}
	_, left := world.Shrink(world.Play{Seed: 7, Steps: 400}, 80_000, stores)
	if len(left) != 3 || slices.ContainsFunc(left, func(e world.Event) bool { return e.Kind != world.Stores }) {
		t.Errorf("left: %v", left)
	}
}
