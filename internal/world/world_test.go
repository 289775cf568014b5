package world_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"listedge/internal/boottime/boottimetest"
	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/world"
)

// A world with real nodes. Each node has parts: pages (a cache) and so on. A part has a file here with what its clients ask
// for, and one with what its answers must be by docs/GUARANTEES.md.
//
// Requests and flights are goroutines in a bubble. Each waits for the clock or for a call that the world answers, and the world
// goes on once all of them wait: so it decides their order. Calls and answers of the same moment are sorted.

// run is a world that is played.
type run struct {
	*world.World
	nodes    []*node
	pages    pages
	trackers []*tracker
	doors
	hasDoors bool // nodes have them
	ample    bool // nodes have room for all
	counts   map[string]int
	pace     time.Duration // how many times as long as usual a step lasts: keys have longer bounds than pages
	steps    int
	lived    time.Duration // how long nodes have run
	broken   string        // the first sentence that does not hold, and how; empty = all hold

	running sync.WaitGroup
	mu      sync.Mutex // guards the rest
	answers []*answer  // since the world last looked
	held    []*beat    // likewise
}

// node is one of the fleet.
type node struct {
	number   int
	life     int // how often a node with this number has begun
	machine  *boottimetest.Machine
	stepped  time.Duration // what its wall clock was set forward: ages count it
	followed *fleet.Followed
	redis    *world.Access
	log      *changefeed.Redis
	lives    context.Context
	end      func()

	pages *nodePages
	keys  *nodeKeys
	door  *door // nil = none
}

// answer is what a request has got.
type answer struct {
	number int
	judge  func()
}

const nodes = 3

// inhabit plays a world, and returns it after its last step, or after the first one that breaks a promise.
func inhabit(of world.Play) *run {
	w := &run{World: world.New(&of), counts: map[string]int{}, nodes: make([]*node, nodes), pace: 1, hasDoors: of.Seed%doorsEvery == 0}
	w.newVisitors()
	if w.Chance(3) {
		w.pace = 5
	}
	for i := range w.nodes {
		w.start(i)
	}
	w.trackers = w.newTrackers()
	for w.steps < of.Steps && w.broken == "" {
		w.steps++
		w.step()
	}
	w.calmDown()
	w.lived = w.Elapsed()
	w.end()
	return w
}

// end ends all that runs.
func (w *run) end() {
	for _, n := range w.nodes {
		n.stop()
	}
	w.Close()
	w.running.Wait()
	if w.hasDoors {
		time.Sleep(workersEnd)
	}
}

// start begins a node in place of another.
func (w *run) start(i int) {
	life := 0
	if w.nodes[i] != nil {
		life = w.nodes[i].life + 1
		w.nodes[i].stop()
	}
	n := &node{number: i, life: life, machine: boottimetest.NewMachine(), followed: &fleet.Followed{}}
	n.lives, n.end = context.WithCancel(context.Background())
	n.followed.SetServer(w.Server())
	n.redis = w.Redis(n.String())
	n.log = w.Log(n.redis, n.followed)
	n.redis.AtOnce(func() { n.pages = w.newPages(n) })
	n.keys, n.door = w.newKeys(n), w.newDoor(n)
	listeners := append([]changefeed.Listener{n.pages, n.keys, &n.pages.joined}, n.door.listeners()...)
	subscriber := changefeed.NewSubscriber(n.log, n.followed, slog.New(slog.DiscardHandler), append(listeners, holder{w, n})...)
	w.running.Go(func() { subscriber.Run(n.lives) })
	w.nodes[i] = n
	w.Tracef("%s starts", n)
}

func (n *node) String() string { return fmt.Sprintf("node %d.%d", n.number, n.life) }

// stop ends a node at once.
func (n *node) stop() {
	n.end()
	n.keys.Close()
	n.door.kill(n.lives)
	_ = n.pages.Close(n.lives)
	n.redis.Close()
}

// step is one step of the world and all that follows of it at once.
func (w *run) step() {
	w.Step()
	w.settle()
	r := w.Rand()
	for i, n := range w.nodes {
		switch {
		case w.Happens(world.Restarts, 1000):
			w.start(i)
			n = w.nodes[i]
		case w.Happens(world.ClockSteps, 2000):
			by := w.In(2000) - w.In(1000)
			n.machine.Set(by)
			n.stepped += max(0, by)
			n.keys.stepped = w.Now()
			w.Tracef("the clock of node %d steps by %s", i, by)
		case w.Chance(50):
			n.followed.SetServer(w.Server())
		}
		w.stepPages(n)
		w.stepRounds(n)
		w.stepDoor(n)
		w.settle()
		w.stepKeys(w.nodes[i]) // its door may have shut down
		w.settle()
	}
	if w.Happens(world.Sleeps, 3000) {
		for _, n := range w.nodes {
			n.machine.Sleep(0)
			n.machine.Clock.Now() // a step back between two readings hides as much of a sleep between them
		}
		d := w.In(20 * 100)
		for _, n := range w.nodes {
			n.machine.Sleep(d)
			n.machine.Clock.Now()
		}
		w.settle() // Redis has what was sent before
		w.Sleep(d)
		for _, n := range w.nodes {
			n.keys.stepped = w.Now()
		}
	}
	w.Elapse(w.pace*(world.Tick/4+time.Duration(r.Int64N(int64(world.Tick*3/2)))), w.settle)
}

// settle lets goroutines go on until all wait, and judges what they have been answered.
func (w *run) settle() {
	for {
		synctest.Wait()
		w.mu.Lock()
		answers, held := w.answers, w.held
		w.answers, w.held = nil, nil
		w.mu.Unlock()
		w.Deliver()
		slices.SortFunc(answers, func(a, b *answer) int { return a.number - b.number })
		for _, a := range answers {
			a.judge()
		}
		if len(held) == 0 {
			return
		}
		slices.SortFunc(held, func(a, b *beat) int { return a.node.number - b.node.number })
		for _, b := range held {
			w.Tracef("%s %s", b.node, b.what)
			close(b.seen)
			synctest.Wait()
		}
	}
}

// holder lets goroutines see each heartbeat by itself: the subscription goes on when all wait.
type holder struct {
	run  *run
	node *node
}

// beat is what a node has read of the log.
type beat struct {
	node *node
	what string
	seen chan struct{}
}

// Beat implements changefeed.Listener.
func (h holder) Beat(b changefeed.Beat) {
	h.node.keys.read(b)
	proves := "nothing"
	if !b.Moment.IsZero() {
		proves = fmt.Sprint("what was visible ", time.Since(b.Moment), " ago")
	}
	h.hold(fmt.Sprintf("reads heartbeat %s: %d changes settled, %d not; it proves %s", b.At, len(b.Settled), len(b.Unsettled), proves))
}

// Reset implements changefeed.Listener.
func (h holder) Reset(epoch string, cause changefeed.ResetCause) {
	h.node.keys.reset()
	h.hold(fmt.Sprintf("resets, to epoch %q: %s", epoch, cause))
}

func (h holder) hold(what string) {
	b := &beat{h.node, what, make(chan struct{})}
	h.run.mu.Lock()
	h.run.held = append(h.run.held, b)
	h.run.mu.Unlock()
	h.run.Wake()
	select {
	case <-b.seen:
	case <-h.node.lives.Done():
	}
}

// request is a client's: send runs meanwhile, and judge when it has been answered.
func (w *run) request(send, judge func()) {
	a := &answer{number: w.counts["requests"], judge: judge}
	w.counts["requests"]++
	w.running.Go(func() {
		send()
		w.mu.Lock()
		w.answers = append(w.answers, a)
		w.mu.Unlock()
		w.Wake()
	})
	w.settle()
}

// await sends a statement and waits for its answer, at most until ctx ends. name tells it from others of the same moment.
func (w *run) await(ctx context.Context, name string, execute func(m *world.Message)) error {
	return w.Send(ctx, &world.Call{Name: name, Decide: func(m *world.Message) {
		m.Began = w.Replayed
		w.counts["statements"]++
		w.Draw(m, &world.ToPostgres)
		m.Execute = func() time.Duration {
			execute(m)
			return 0
		}
		w.Tracef("%s asks", name)
	}})
}
