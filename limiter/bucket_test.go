package limiter

import (
	"math/rand/v2"
	"testing"
)

// oracle checks the promise itself, knowing nothing of buckets: over any span,
// admitted <= burst + rate * t. It keeps, in units, the lowest value so far of
// "admitted before, less what the rate had brought".
type oracle struct {
	p        Policy
	admitted int64
	lowest   int64
}

// admit records one admission at time now and reports whether every span that
// ends here keeps the promise.
func (o *oracle) admit(now int64) bool {
	o.lowest = min(o.lowest, o.admitted*o.p.p-now*o.p.r)
	o.admitted++
	return o.admitted*o.p.p-now*o.p.r-o.lowest <= o.p.units()
}

// randomPolicy covers bursts of 1 to thousands and rates slow and fast; its
// numbers stay small enough for the oracle's sums.
func randomPolicy(t testing.TB, random *rand.Rand) Policy {
	rates := []float64{0.2, 1, 5.0 / 60, 50, 333, 1_000, 12.34, 250_000}
	bursts := []int64{1, 2, 5, 15, 100, 5_000}
	return policy(t, rates[random.IntN(len(rates))], bursts[random.IntN(len(bursts))])
}

func TestNeverOverBurstPlusRate(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		p := randomPolicy(t, random)
		check := oracle{p: p}
		now, taken, given := int64(0), int64(0), int64(0)
		s := fullState(p, now)
		for range 2_000 {
			switch random.IntN(4) {
			case 0: // a burst of arrivals
			case 1:
				now += random.Int64N(2 * p.p / p.r)
			case 2:
				now += random.Int64N(1_000)
			case 3:
				if random.IntN(50) == 0 {
					now += p.units() / p.r
				}
			}
			c := call{policy: p, need: 1}
			if random.IntN(20) == 0 && taken > given { // one that turns out to cost nothing
				c = call{policy: p, ret: 1}
				given++
			}
			s.visit(&c, now)
			taken += c.granted
			if s.level < 0 || s.level > p.units() {
				t.Fatalf("seed %d: level %d of %d", seed, s.level, p.units())
			}
			if c.granted == 0 {
				continue
			}
			// Returned tokens were not spent: they may be admitted once more.
			if given == 0 && !check.admit(now) {
				t.Fatalf("seed %d: %+v admitted too much by %d us", seed, p, now)
			}
		}
		if limit := p.units() + now*p.r; (taken-given)*p.p > limit {
			t.Fatalf("seed %d: %d admitted in %d us by %+v", seed, taken-given, now, p)
		}
	}
}

// A steady flood gets everything the rate brings: the bucket never under-admits.
func TestNothingIsLost(t *testing.T) {
	p := policy(t, 50, 100)
	s := fullState(p, 0)
	admitted := int64(0)
	const span = 60_000_000
	for now := int64(0); now <= span; now += 777 {
		c := call{policy: p, need: 1}
		s.visit(&c, now)
		admitted += c.granted
	}
	if want := int64(100 + 60*50 - 1); admitted < want {
		t.Fatalf("%d admitted in a minute, at least %d were due", admitted, want)
	}
}

func TestFiveAMinute(t *testing.T) {
	p := policy(t, 5.0/60, 5)
	s := fullState(p, 0)
	take := func(now int64) call {
		c := call{policy: p, need: 1}
		s.visit(&c, now)
		return c
	}
	for range 5 {
		if take(0).granted != 1 {
			t.Fatal("the burst is refused")
		}
	}
	if c := take(0); c.granted != 0 || c.wait != 12_000_000 || s.untilFull() != 60_000_000 {
		t.Fatalf("the sixth: %+v", c.reply)
	}
	if c := take(11_999_999); c.granted != 0 || c.wait != 1 {
		t.Fatalf("a microsecond early: %+v", c.reply)
	}
	if c := take(12_000_000); c.granted != 1 || c.remaining() != 0 || s.untilFull() != 60_000_000 {
		t.Fatalf("on time: %+v", c.reply)
	}
}

func TestRefusedCostsNothing(t *testing.T) {
	p := policy(t, 3, 2)
	s := fullState(p, 0)
	s.visit(&call{policy: p, need: 2}, 0)
	before := s
	for now := int64(0); now < 333_333; now += 1_111 {
		c := call{policy: p, need: 1}
		if s.visit(&c, now) || c.granted != 0 || s != before {
			t.Fatalf("refused at %d, and yet %+v became %+v", now, before, s)
		}
	}
	c := call{policy: p, need: 1}
	if s.visit(&c, 333_334); c.granted != 1 {
		t.Fatalf("the token was due: %+v", c.reply)
	}
}

func TestReturnNeverOverfills(t *testing.T) {
	p := policy(t, 1, 10)
	s := fullState(p, 0)
	s.visit(&call{policy: p, need: 3}, 0)
	for _, ret := range []int64{2, 1, 1, 1 << 50} {
		s.visit(&call{policy: p, ret: ret}, 0)
		if s.level > p.units() {
			t.Fatalf("level %d above %d", s.level, p.units())
		}
	}
	if s.level != p.units() {
		t.Fatalf("level %d, want full", s.level)
	}
}

func TestDebt(t *testing.T) {
	p := policy(t, 1, 10)
	s := fullState(p, 0)
	c := call{policy: p, need: 10, debt: 4}
	if s.visit(&c, 0); c.granted != 6 {
		t.Fatalf("granted %d after a debt of 4", c.granted)
	}
	// What is not there is owed: others had taken it, and one gives some back.
	s.visit(&call{policy: p, debt: 2}, 0)
	c = call{policy: p, ret: 1, need: 1}
	if s.visit(&c, 500_000); c.granted != 0 || c.remaining() != 0 || c.level != -p.p/2 || c.wait != 1_500_000 {
		t.Fatalf("%+v", c.reply)
	}
	// A quarter of the burst at most.
	c = call{policy: p, debt: 1 << 50}
	if s.visit(&c, 500_000); s.level != -2*p.p || c.wait != 3_000_000 {
		t.Fatalf("level %d, wait %d", s.level, c.wait)
	}
	c = call{policy: p, need: 5}
	if s.visit(&c, 3_500_000); c.granted != 1 || s.level != 0 {
		t.Fatalf("%+v", c.reply)
	}
}

func TestPolicyChangeKeepsTheFilledShare(t *testing.T) {
	t.Parallel()
	old := policy(t, 10, 100)
	old.Version = 3
	s := fullState(old, 0)
	s.visit(&call{policy: old, need: 75}, 0) // a quarter left

	wider := policy(t, 1000, 1000)
	wider.Version = 4
	c := call{policy: wider}
	if s.visit(&c, 0); c.remaining() != 250 || c.version != 4 {
		t.Fatalf("a quarter of 1000: %+v", c.reply)
	}
	c = call{policy: old, need: 1} // a node that has not heard of it
	if s.visit(&c, 0); c.version != 4 || c.remaining() != 249 || s.policy != wider {
		t.Fatalf("the older version came back: %+v", c.reply)
	}
	for at, adopted := range map[int64]bool{leaseLife: false, 2 * leaseLife: true} { // versions have begun anew
		later := s
		if later.visit(&call{policy: old}, at); (later.policy == old) != adopted {
			t.Errorf("an older version after %d µs in which nobody went by the newer: %+v", at, later.policy)
		}
	}
	narrow := policy(t, 1, 2)
	narrow.Version = 4 // the same version with other numbers: the last to ask decides
	c = call{policy: narrow, need: 1}
	if s.visit(&c, 0); c.granted != 0 || s.policy != narrow {
		t.Fatalf("0.498 of a token was granted as one: %+v", c.reply)
	}
	// There and back again gains nothing, whatever the numbers.
	random := rand.New(rand.NewPCG(5, 6))
	for range 5_000 {
		a, b := randomPolicy(t, random), randomPolicy(t, random)
		s := state{level: random.Int64N(a.units()+a.units()/4+1) - a.units()/4, policy: a}
		before := s.level
		s.rescale(b)
		if s.level > b.units() {
			t.Fatalf("%+v to %+v overfills", a, b)
		}
		if s.rescale(a); s.level > before {
			t.Fatalf("%+v to %+v and back: %d became %d", a, b, before, s.level)
		}
	}
}

func TestClockGoingBackwards(t *testing.T) {
	p := policy(t, 10, 10)
	start := int64(100_000_000)
	s := fullState(p, start)
	s.visit(&call{policy: p, need: 10}, start)

	// Within a second: jitter. Nothing refills twice, and what is there is there.
	s.visit(&call{policy: p, ret: 1}, start)
	c := call{policy: p, need: 1}
	if s.visit(&c, start-900_000); c.granted != 1 || s.ts != start || s.level != 0 {
		t.Fatalf("jitter: %+v, %+v", c.reply, s)
	}
	// Further: the count starts anew, and this visit is granted nothing.
	s.visit(&call{policy: p, ret: 5}, start)
	c = call{policy: p, need: 1}
	if !s.visit(&c, start-60_000_000) || c.granted != 0 || s.ts != start-60_000_000 || c.remaining() != 5 {
		t.Fatalf("step: %+v, %+v", c.reply, s)
	}
	c = call{policy: p, need: 10}
	if s.visit(&c, start-60_000_000); c.granted != 5 {
		t.Fatalf("after the step: %+v", c.reply)
	}
	c = call{policy: p, need: 10}
	if s.visit(&c, start-59_000_000); c.granted != 10 {
		t.Fatalf("a second after the step: %+v", c.reply)
	}

	// A clock that swings back and forth by whole seconds brings no token that
	// the time walked forwards does not account for.
	random := rand.New(rand.NewPCG(7, 8))
	s = fullState(p, start)
	now, forward, admitted := start, int64(0), int64(0)
	for range 20_000 {
		step := random.Int64N(6_000_000) - 3_000_000
		if now += step; step > 0 {
			forward += step
		}
		c := call{policy: p, need: 1}
		s.visit(&c, now)
		admitted += c.granted
	}
	if limit := p.units() + forward*p.r; admitted*p.p > limit {
		t.Fatalf("%d admitted, the forward steps bring %d", admitted, limit/p.p)
	}
}
