// One goroutine in virtual time: the race detector finds nothing here, and is ten times as slow.

//go:build !race

package lease_test

import (
	"fmt"
	"testing"

	"listedge/limiter/lease"
	. "listedge/limiter/lease/leasetest"
)

func quota(t testing.TB, tokens int64) lease.Policy {
	t.Helper()
	p, err := lease.NewQuota(tokens, 1<<60)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// loads are how requests for a quota come: so many a second.
var loads = []struct {
	name string
	of   func(perSecond float64) Shape
}{
	{"spread", func(r float64) Shape { return func(w *World) (int64, int64) { return w.Gap(r), w.AnyNode() } }},
	{"sticky", func(r float64) Shape { return func(w *World) (int64, int64) { return w.Gap(r), 0 } }},
	{"moving", func(r float64) Shape {
		return func(w *World) (int64, int64) { return w.Gap(r), w.Now / 3_000_000 % int64(len(w.Nodes)) }
	}},
	{"bursty", func(r float64) Shape {
		return func(w *World) (int64, int64) {
			if w.Random.IntN(40) == 0 {
				return w.Gap(r / 40), w.AnyNode()
			}
			return w.Random.Int64N(2_000), w.AnyNode()
		}
	}},
}

// spendAll has requests come until long after the quota is used up.
func spendAll(w *World, s Shape, perSecond float64) {
	span := int64(1.5*float64(w.Policy.Burst)/perSecond*1e6) + 40_000_000
	w.Traffic(s, span)
	w.Run(span + 1_000_000)
}

// left is what the quota and the nodes still have; it may be below 0.
func left(w *World) int64 {
	tokens := w.Bucket.Level / lease.Token
	for _, n := range w.Nodes {
		tokens += n.Lease.Holds(n.Now())
	}
	return tokens
}

// A fleet admits exactly a quota: what no request takes from a node goes back to the
// others. Only few requests ask Redis.
func TestAQuotaIsAdmittedExactly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		tokens    int64
		perSecond float64
		calls     float64 // for a request while the quota lasts, at most
	}{{1, 1, 2}, {10, 2, 2}, {50, 1, 1.6}, {1_000, 20, .3}, {20_000, 200, .15}} {
		for _, nodes := range []int{1, 3, 8} {
			line := ""
			for _, load := range loads {
				w := New(t, 3, quota(t, c.tokens), nodes)
				calls := int64(0)
				w.Admit = func(*Node) { calls = w.Calls }
				spendAll(w, load.of(c.perSecond), c.perSecond)
				perRequest := float64(calls) / float64(c.tokens)
				line += fmt.Sprintf(" | %s %d, %.3f, %d after", load.name, w.Admitted, perRequest, w.Calls-calls)
				if w.Admitted != c.tokens {
					t.Errorf("%d nodes, %s: %d of %d admitted", nodes, load.name, w.Admitted, c.tokens)
				}
				if perRequest > c.calls {
					t.Errorf("%d nodes, %s, %d at %v/s: %.2f calls a request", nodes, load.name, c.tokens, c.perSecond, perRequest)
				}
			}
			t.Logf("%5d at %3.0f/s, %d nodes: admitted, calls a request, calls once it is used up%s", c.tokens, c.perSecond, nodes, line)
		}
	}
}

// Messages come late, get lost, nodes stand still and crash: never more than the quota
// is admitted.
func TestAQuotaInStorms(t *testing.T) {
	t.Parallel()
	lost, crashed := int64(0), 0
	for seed := range uint64(stormSeeds) {
		tokens := []int64{10, 100, 1_000, 5_000}[seed%4]
		w := New(t, seed, quota(t, tokens), []int{1, 3, 8}[seed/4%3])
		w.Mode = FailDeny
		weather := 0.0
		w.OneWay = func() int64 {
			if w.Random.Float64() < weather {
				return w.Random.Int64N(300_000)
			}
			return 40 + w.Random.Int64N(60)
		}
		w.Lost = func() bool { return w.Random.Float64() < weather/3 }
		w.Admit = func(*Node) {
			if w.Admitted > tokens {
				t.Fatalf("seed %d: %d of %d admitted", seed, w.Admitted, tokens)
			}
		}
		w.Check = func(c *lease.Call) {
			if !w.Bucket.Within() || w.Bucket.HeldNow+w.Bucket.HeldBefore != 0 {
				t.Fatalf("seed %d: after %+v: %+v", seed, c, w.Bucket)
			}
		}
		perSecond := float64(tokens) / 30
		for at := int64(1e6); at < 40e6; at += 2e6 {
			w.After(at, func() {
				i := w.Random.IntN(len(w.Nodes))
				switch w.Random.IntN(5) {
				case 0:
					weather = .3
				case 1:
					weather = 0
				case 2:
					w.Nodes[i].Stop(w.Random.Int64N(15e6))
				case 3:
					crashed++
					w.Crash(i)
				case 4:
					w.Clock += w.Random.Int64N(40e6) - 20e6
				}
			})
		}
		w.After(41e6, func() { weather = 0 })
		spendAll(w, loads[w.Random.IntN(len(loads))].of(perSecond), perSecond)
		lost += tokens - w.Admitted
	}
	t.Logf("%d storms, %d crashes: %d tokens lost", stormSeeds, crashed, lost)
}

// What is lost with a node that crashes is what it held.
func TestACrashLosesWhatTheNodeHeld(t *testing.T) {
	t.Parallel()
	for seed := range uint64(simSeeds) {
		w := New(t, seed, quota(t, 2_000), 3)
		held, crashes := int64(0), 0
		for at := int64(5e6); at < 50e6; at += 5e6 {
			w.After(at, func() {
				if n := w.Nodes[0]; !n.Pending { // what a call is about is not counted here
					held += n.Lease.Holds(n.Now())
					crashes++
					w.Crash(0)
				}
			})
		}
		spendAll(w, loads[0].of(40), 40)
		t.Logf("seed %d: %d of 2000 admitted, %d crashes with %d held", seed, w.Admitted, crashes, held)
		if w.Admitted != 2_000-held || crashes == 0 || held > int64(crashes)*2*4*40/3 {
			t.Errorf("seed %d: %d admitted, %d were held by %d nodes that crashed", seed, w.Admitted, held, crashes)
		}
	}
}

// A node that has had no request for a day still spends what it holds, and gives back
// what it does not need.
func TestTokensOfAQuotaDoNotAge(t *testing.T) {
	t.Parallel()
	p := quota(t, 1_000)
	f := &lease.Fleet{Nodes: 2, Link: &lease.Link{Budget: Budget}}
	b, l := Full(p, 1), new(lease.Lease)
	l.Init(p, 1)
	call := func(now int64, waiting int64, all bool) lease.Call {
		var c lease.Call
		if l.Begin(&c, waiting, now, f, all) {
			b.Execute(&c, now)
			l.Complete(&c, now, now, f)
		}
		return c
	}
	for range 20 {
		if l.Take(1) == lease.NeedRemote {
			call(1, 1, false)
			l.Retry(1)
		}
	}
	held, day := l.Holds(1), int64(86_400_000_000)
	if held == 0 || l.Holds(day) != held || l.Take(day) != lease.Granted {
		t.Fatalf("%d held, %d a day later", held, l.Holds(day))
	}
	if l.Refund(day, lease.FromLease) || l.Holds(day) != held {
		t.Fatalf("%d held after one was given back, of %d", l.Holds(day), held)
	}
	if !l.Sweep(2*day, f) {
		t.Fatal("an idle node keeps what it holds")
	}
	c := call(2*day, 0, false)
	if c.Returned != held || b.Level != (1_000-20)*lease.Token || l.Holds(2*day) != 0 {
		t.Fatalf("%+v, %+v", c, b)
	}
	if l.Sweep(2*day, f) || l.IsActive() || !l.Forgettable(3*day) {
		t.Error("the node remembers a quota of which it holds nothing")
	}
}

// A quota that is raised or lowered in its period keeps what was spent: exactly as much
// as the last one has is admitted, if that much was left.
func TestAChangedQuotaKeepsWhatWasSpent(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3, 8} {
		for _, change := range [][]int64{{1_000, 1_500}, {1_000, 600}, {1_000, 200, 1_100}, {100, 5, 101}, {20, 3, 8, 40}, {1_000, 10, 1_000}} {
			for seed := range uint64(simSeeds) {
				p := quota(t, change[0])
				p.Version = 1
				w := New(t, seed, p, nodes)
				spent, at := change[0]/2, int64(5e6)
				w.Traffic(loads[0].of(float64(spent)/4), 4e6)
				for i, tokens := range change[1:] {
					q := quota(t, tokens)
					q.Version = int64(i + 2)
					w.After(at, func() {
						for _, n := range w.Nodes {
							w.After(w.Random.Int64N(300_000), func() { n.SetPolicy(q) })
						}
					})
					at += 5e6
				}
				before := int64(0)
				w.After(5e6, func() { before = w.Admitted })
				last := change[len(change)-1]
				w.After(at, func() { w.Traffic(loads[0].of(float64(last)/4+5), at+20e6) })
				w.Run(at + 25e6)
				if want := max(before, last); w.Admitted != want || left(w) != last-want {
					t.Errorf("%d nodes, %v, seed %d: %d admitted, %d of them before, %d left", nodes, change, seed, w.Admitted, before, left(w))
				}
			}
		}
	}
}

// Redis is away, for all nodes or for some of them, once and again, or until the quota is
// used up: a node admits its part of what is left, as far as it knows, and the quota is
// debited with all of it. So at most the parts of the nodes that were cut off are admitted
// too much.
func TestAQuotaWithoutRedis(t *testing.T) {
	t.Parallel()
	for _, tokens := range []int64{30, 500, 5_000} {
		for _, c := range []struct{ cut, nodes int }{{1, 1}, {1, 3}, {2, 3}, {8, 8}} {
			for _, cuts := range []struct {
				what              string
				first, last, each int64
			}{{"once", 10e6, 10e6, 3e6}, {"again and again", 10e6, 22e6, 3e6}, {"to the end", 20e6, 20e6, 30e6}} {
				w := New(t, 7, quota(t, tokens), c.nodes)
				perSecond := float64(tokens) / 30
				for at := cuts.first; at <= cuts.last; at += 4e6 {
					for _, n := range w.Nodes[:c.cut] {
						w.After(at, func() { n.Cut = true })
						w.After(at+cuts.each, func() { n.Cut = false })
					}
				}
				alone := int64(0)
				w.After(cuts.first-1, func() { alone = left(w) })
				spendAll(w, loads[0].of(perSecond), perSecond)
				over, part := w.Admitted-tokens, alone*int64(c.cut)/int64(c.nodes)
				t.Logf("%d tokens, %d of %d nodes cut off %s: %d admitted alone, %d over, %d left", tokens, c.cut, c.nodes, cuts.what, w.Fallback, over, left(w))
				if over > part+2+part/8 || over > 0 && cuts.what != "to the end" || over < -(40+tokens/50) {
					t.Errorf("%d tokens, %d of %d nodes cut off %s: %d over, and the nodes' part was %d", tokens, c.cut, c.nodes, cuts.what, over, part)
				}
				if w.Fallback == 0 && tokens > 30 {
					t.Error("no node decided alone")
				}
				for _, n := range w.Nodes {
					if n.Lease.HasDebt() {
						t.Error("a debt is left")
					}
				}
			}
		}
	}
}

// FailAllow admits all, and the quota is debited with all of it.
func TestAQuotaThatIsAllowedAbove(t *testing.T) {
	t.Parallel()
	w := New(t, 1, quota(t, 100), 1)
	w.Mode = FailAllow
	w.Nodes[0].Cut = true
	w.After(20e6, func() { w.Nodes[0].Cut = false })
	w.Traffic(loads[0].of(20), 20e6)
	w.Run(30e6)
	if w.Admitted < 300 || left(w) != 100-w.Admitted {
		t.Errorf("%d admitted, %d left of 100", w.Admitted, left(w))
	}
	before := w.Admitted
	w.Traffic(loads[0].of(20), 40e6)
	w.Run(45e6)
	if w.Admitted != before {
		t.Errorf("%d admitted above it when Redis was back", w.Admitted-before)
	}
}

// What is shown as left of a quota may be had.
func TestWhatIsShownOfAQuota(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3, 8} {
		for _, load := range loads[:3] {
			w := New(t, 5, quota(t, 10_000), nodes)
			over, shown, low := 0, 0, int64(0)
			w.Decided = func(n *Node, ok bool) {
				s := n.Lease.Status(n.Now())
				if s.ResetIn != 0 {
					t.Fatalf("%+v", s)
				}
				if ok {
					shown++
					if more := s.Remaining - w.Remaining(); more > 0 {
						over++
					} else {
						low = max(low, -more)
					}
				}
			}
			spendAll(w, load.of(100), 100)
			t.Logf("%d nodes, %s: %d of %d too many, at most %d too few", nodes, load.name, over, shown, low)
			if float64(over) > .03*float64(shown) || low > 2_000 {
				t.Errorf("%d nodes, %s: %d of %d shown too many, at most %d too few", nodes, load.name, over, shown, low)
			}
		}
	}
}

func TestPoliciesOfQuotas(t *testing.T) {
	for _, tokens := range []int64{-1, 0, lease.MaxTokens + 1} {
		if p, err := lease.NewQuota(tokens, 1); err == nil {
			t.Errorf("%d: %+v", tokens, p)
		}
	}
	if p, err := lease.NewQuota(1, 0); err == nil {
		t.Errorf("no end: %+v", p)
	}
	p := quota(t, lease.MaxTokens)
	if p.Blocked() || !p.IsQuota() || p.Units() > lease.MaxUnits {
		t.Errorf("%+v", p)
	}
	if p := (lease.Policy{Burst: 5}); !p.Blocked() || p.IsQuota() {
		t.Error("rate 0 admits something")
	}
}

// A node's part of a quota shrinks when another node joins; its debt does not.
func TestANodeThatJoinsLeavesADebtAsItIs(t *testing.T) {
	var l lease.Lease
	var link lease.Link
	link.Budget = 10_000
	l.Init(quota(t, 1000), 0)
	const spent = 600
	now := int64(1_000_000)
	alone := lease.Fleet{Nodes: 1, Link: &link, Contact: now}
	for range spent {
		if ok, _ := l.TakeFallback(now, &alone, false); !ok {
			t.Fatal("refused")
		}
	}
	two := lease.Fleet{Nodes: 2, Link: &link, Contact: now + 10}
	var c lease.Call
	if !l.Begin(&c, 0, now, &two, false) || c.Debt != spent {
		t.Fatalf("a debt of %d, want %d", c.Debt, spent)
	}
	l.Fail(&c, now)
	l.TakeFallback(now+1, &two, true)
	if !l.Begin(&c, 0, now+2, &two, false) || c.Debt != spent+1 {
		t.Errorf("a debt of %d after a call that failed, want %d", c.Debt, spent+1)
	}
}
