package limiter

import "testing"

// A node that hears nothing any more stops spending before the bucket stops
// counting what it holds.
func TestLeaseEndsBeforeItAges(t *testing.T) {
	p := policy(t, 1_000, 1_000)
	for offset := int64(0); offset < leaseLife; offset += leaseLife / 50 {
		s := fullState(p, 7*leaseLife+offset)
		l := &lease{life: leaseLife, policy: p}
		c := call{extra: 100, policy: p, life: leaseLife}
		s.visit(&c, s.ts)
		l.flight.under = true
		l.land(&c, 0, 300, 0)
		last := int64(0)
		for now := int64(300); now < 3*leaseLife; now += 50_000 {
			if v, _ := l.spend(now); v == spent {
				last = now
				l.unspend(now)
			}
		}
		if last < leaseLife-2*leaseSlack {
			t.Fatalf("spent for %d us only", last)
		}
		s.refill(s.ts+last+leaseSlack/2, leaseLife)
		if s.held+s.prev != 100 {
			t.Fatalf("spent %d us after the bucket was asked, which counts %d tokens by then", last, s.held+s.prev)
		}
	}
}

// The bucket answers in between and shows tokens that the other nodes owe: each
// of many short outages goes on with what the one before left of this node's part.
func TestManyShortOutagesAreOne(t *testing.T) {
	t.Parallel()
	const nodes = 4
	p := policy(t, 10, 100)
	l := &lease{life: leaseLife, link: &roundTrip{budget: simBudget}, policy: p}
	admitted, now := int64(0), int64(0)
	for range 100 {
		for range 50 {
			if ok, _ := l.alone(p, now, nodes); ok {
				admitted++
			}
		}
		var c call
		if !l.depart(&c, p, now, nodes, 0, false) {
			t.Fatal("nothing is owed")
		}
		now += 400_000
		full := fullState(p, now)
		full.visit(&c, now)
		c.level = p.units()
		l.land(&c, now-1_000, now, 0)
	}
	if most := (p.Burst + 40*10) / nodes; admitted > most || admitted < most-1 {
		t.Errorf("%d admitted in 40 s of outages, %d are this node's part", admitted, most)
	}
}

// A node that stood still finds an answer that granted a token long ago. The
// bucket has filled up since: the token is gone.
func TestLateGrantsDoNotGoBack(t *testing.T) {
	t.Parallel()
	const asleep = 15_000_000
	p := policy(t, 50, 15)
	l := &lease{life: leaseLife, link: &roundTrip{budget: simBudget}, policy: p}
	w := &waiter{done: make(chan struct{}, 1)}
	if _, queued := l.enter(w, p, 0); !queued {
		t.Fatal("not queued")
	}
	c := call{life: leaseLife}
	if !l.depart(&c, p, 0, 1, 0, false) {
		t.Fatal("nothing is wanted")
	}
	s := fullState(p, 0)
	s.visit(&c, 100)
	l.land(&c, 0, asleep, 0)
	if c.granted != 1 || l.ret != 0 || w.fate == given {
		t.Errorf("%d granted: %d to give back, the waiter's fate is %d", c.granted, l.ret, w.fate)
	}
}
