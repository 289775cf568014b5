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
