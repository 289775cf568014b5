package limiter_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"listedge/internal/boottime/boottimetest"
	"listedge/internal/sandbox/redistest"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/internal/world"
	. "listedge/limiter"
	"listedge/limiter/lease"
)

func TestMain(m *testing.M) {
	redistest.Silence()
	goleak.VerifyTestMain(m)
}

// patient is a budget for tests that are not about the budget: for hangs, on
// however slow a machine.
const patient = time.Minute

var (
	startRedis   = redistest.Start
	startCluster = redistest.Cluster
	within       = sandboxtest.Within
)

// open makes a limiter that is closed before the test's other clean-ups.
func open(t testing.TB, o Options) *Limiter {
	t.Helper()
	l := New(o)
	t.Cleanup(func() { closeLimiter(t, l) })
	return l
}

func closeLimiter(t testing.TB, l *Limiter) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	if err := l.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func must1[T any](v T, err error) T {
	must(err)
	return v
}

// take is Take now.
func take(l *Limiter, key, workspace *Bucket) Decision {
	return l.Take(time.Now(), key, workspace, nil)
}

// left is how many tokens the bucket shows.
func left(l *Limiter, b *Bucket) int64 { return l.Peek(time.Now(), b, nil, nil).Key.Remaining }

// counted waits until the node has found so many for a while.
func counted(t testing.TB, l *Limiter, nodes int64) {
	t.Helper()
	within(t, 2*patient, "the nodes are counted", func() bool {
		f := fleetOf(l)
		return !f.Cold && f.Nodes == nodes && f.Silent == 0
	})
}

// fleetOf is what a node knows of the fleet.
func fleetOf(l *Limiter) *lease.Fleet { return l.Fleet(members) }

// What the limiter says of itself, in its comments and scripts.
const (
	members    = "{fleet}:members"
	heartbeats = 500 * time.Millisecond
	timeout    = 250 * time.Millisecond
	silentFor  = 1100 * time.Millisecond
)

func policy(_ testing.TB, rate float64, burst int64) Policy { return simLimit{rate, burst}.policy() }

type simLimit struct {
	rate  float64
	burst int64
}

func (l simLimit) String() string { return fmt.Sprintf("%.4g/s b%d", l.rate, l.burst) }

func (l simLimit) policy() Policy { return must1(NewPolicy(l.rate, l.burst)) }

// simLimits are the five limits, from 5 a minute to 20,000 a second.
var simLimits = []simLimit{{5.0 / 60, 5}, {50, 100}, {333, 40}, {1_000, 1_000}, {20_000, 5_000}}

// eventually waits for what another goroutine is about to bring.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	within(t, patient, what, ok)
}

func takes(t *testing.T, l *Limiter, b *Bucket, n int, want Source) {
	t.Helper()
	for range n {
		if d := take(l, b, nil); !d.Allowed || d.Source != want {
			t.Fatalf("%+v, want a token from %v", d, want)
		}
	}
}

// smallKey is a bucket of 15, which is not leased from, whose refill (a token in
// 1,000 s) does not matter; slowKey is one of 200, which is.
func smallKey(t testing.TB, l *Limiter) *Bucket {
	return l.Bucket(KeyBucket("w", t.Name()), policy(t, 0.001, 15))
}
func slowKey(t testing.TB, l *Limiter) *Bucket {
	return l.Bucket(KeyBucket("w", t.Name()), policy(t, 0.001, 200))
}

// mood is what a virtual store does with a pipeline.
type mood int32

const (
	well   mood = iota
	hung        // no answer, and nothing done
	broken      // refused at once
	frozen      // done once it is well again, for those who still wait
)

var errMoody = errors.New("not today")

// virtual is Redis as the tests want it to be, with a network and a processor that
// take their time, and moods.
type virtual struct {
	oneWay  atomic.Int64  // nanoseconds of a message's way
	perCall time.Duration // one call after the other, as Redis does
	nodes   int64         // what a heartbeat counts; 0 = those that beat

	mood        atomic.Int32
	deafToBeats atomic.Bool // heartbeats fail, and calls get through
	trips       atomic.Int64
	calls       atomic.Int64
	most        atomic.Int64 // calls in one pipeline

	mu    sync.Mutex // guards all below
	redis *world.Redis
	free  time.Time // when it has done what has come
}

func newVirtual() *virtual { return &virtual{redis: world.NewRedis("virtual", time.Now)} }

// do executes a command at once.
func (v *virtual) do(command ...string) any {
	c := &world.RedisCall{Commands: [][]string{command}}
	v.redis.Execute(c)
	return c.Replies[0]
}

// reach is a message's way to the store and its work there.
func (v *virtual) reach(ctx context.Context, calls int) error {
	time.Sleep(time.Duration(v.oneWay.Load()))
	switch mood(v.mood.Load()) {
	case hung:
		<-ctx.Done()
		return ctx.Err()
	case broken:
		return errMoody
	case frozen:
		for mood(v.mood.Load()) == frozen {
			if time.Sleep(time.Millisecond); ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	v.mu.Lock()
	if now := time.Now(); v.free.Before(now) {
		v.free = now
	}
	v.free = v.free.Add(time.Duration(calls) * v.perCall)
	wait := time.Until(v.free)
	v.mu.Unlock()
	time.Sleep(wait)
	return ctx.Err()
}

func (v *virtual) execute(ctx context.Context, calls []*call) error {
	beats := calls[0].beats
	if !beats {
		v.trips.Add(1)
		v.calls.Add(int64(len(calls)))
		v.most.Store(max(v.most.Load(), int64(len(calls))))
	}
	err := v.reach(ctx, len(calls))
	switch {
	case beats && v.deafToBeats.Load():
		err = errMoody
	case err == nil:
		v.mu.Lock()
		for _, c := range calls {
			c.answer = v.serve(c)
		}
		v.mu.Unlock()
	}
	if err == nil && !beats {
		time.Sleep(time.Duration(v.oneWay.Load()))
	}
	return cmp.Or(err, ctx.Err())
}

func (v *virtual) masterOf(string) int { return 0 }

// serve is what a script does. v.mu is held.
func (v *virtual) serve(c *call) []int64 {
	answer := c.on(v.redis)
	if c.beats {
		answer[0] = max(v.nodes, answer[0])
	}
	return answer
}

// count makes heartbeats count so many nodes; 0 = those that beat.
func (v *virtual) count(nodes int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.nodes = nodes
}

// left is what the shared bucket contains, what is held not counted.
func (v *virtual) left(b *Bucket) int64 {
	return max(0, look(v.redis, b.Key(), b.Policy()).Level) / lease.Token
}

// quotaLeft is what no node has taken of the only quota.
func (v *virtual) quotaLeft(tokens int64) int64 {
	for _, key := range v.do("keys", "*").([]any) {
		total, ok := v.do("hget", key.(string), "total").(string)
		if ok {
			tokens -= must1(strconv.ParseInt(total, 10, 64))
		}
	}
	return tokens
}

// decide runs f with a node that is without Redis, and with one that finds its limits in Redis: both
// make the same decisions. source is where they do.
func decide(t *testing.T, f func(t *testing.T, l *Limiter, source Source)) {
	t.Run("direct", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, open(t, Options{}), SourceMemory) })
	})
	t.Run("leased", func(t *testing.T) {
		inVirtualTime(t, Options{}, func(t *testing.T, l *Limiter, _ *virtual) { f(t, l, SourceRedis) })
	})
}

// inVirtualTime runs f with a limiter on a virtual store in a synctest bubble, once
// it has counted its fleet.
func inVirtualTime(t *testing.T, o Options, f func(t *testing.T, l *Limiter, v *virtual)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		v := newVirtual()
		l := newLimiter(o, v)
		defer closeLimiter(t, l)
		boottimetest.Pass(3 * time.Second)
		f(t, l, v)
	})
}

// way is a node's way to a virtual Redis, which may lose what is sent or what is answered.
type way struct {
	*virtual
	masters   int // of a Cluster; 0 = none. Only what goes to the second one may be lost
	cut, deaf atomic.Bool
	passes    atomic.Pointer[func(key string)] // called for each key that is looked up, sent or answered
}

func (w *way) pass(key string) {
	if f := w.passes.Load(); f != nil {
		(*f)(key)
	}
}

func (w *way) masterOf(key string) int {
	w.pass(key)
	if w.masters == 2 && (key == "second" || key == "{fleet1}:members") {
		return 1
	}
	return 0
}

func (w *way) execute(ctx context.Context, calls []*call) error {
	key := calls[0].key
	safe := w.masters == 2 && w.masterOf(key) == 0
	w.pass(key)
	defer w.pass(key)
	if safe || !w.cut.Load() {
		if err := w.virtual.execute(ctx, calls); safe || !w.deaf.Load() {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// fleetOn makes so many limiters on a virtual Redis, that have counted one another.
func fleetOn(t *testing.T, v *virtual, nodes, masters int) (all []*Limiter, ways []*way) {
	t.Helper()
	for i := range nodes {
		ways = append(ways, &way{virtual: v, masters: masters})
		l := newLimiter(Options{NodeID: fmt.Sprint(i)}, ways[i])
		t.Cleanup(func() { closeLimiter(t, l) })
		all = append(all, l)
	}
	boottimetest.Pass(3 * time.Second)
	return all, ways
}

// fleet is fleetOn a single server.
func fleet(t *testing.T, v *virtual, nodes int) []*Limiter {
	t.Helper()
	all, _ := fleetOn(t, v, nodes, 0)
	return all
}
