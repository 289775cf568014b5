//go:build !race

package limiter_test

import (
	"time"

	"listedge/internal/boottime/boottimetest"
	. "listedge/limiter"
	"listedge/limiter/lease"
)

// ask has the next request come to any node, and waits for the decision.
func (w *world) ask() Decision {
	w.offered++
	return w.nodes[w.anyNode()].ask()
}

// afterAFlood has a flood of a minute on all nodes. Then a client waits for Retry-After, and keeps
// to 95 % of the rate. It returns how many of its requests are refused.
func (w *world) afterAFlood() (refused float64) {
	const flood = int64(60e6)
	rate := perSecond(w.policy)
	w.traffic(steady(max(20/rate, 3)), flood)
	w.run(flood + 600_000)
	for end := flood + max(int64(120e6), w.policy.TimeFor(w.policy.Units())); w.now() < end; {
		if d := w.ask(); d.Allowed {
			boottimetest.Pass(span(int64(1e6 / rate / .95)))
		} else {
			refused++
			boottimetest.Pass((d.RetryAfter + time.Second - 1).Truncate(time.Second))
		}
	}
	return refused
}

// regularBursts has a client send whole bursts, one every x refills: 20 with requests 1 ms apart, and
// after a rest as many with 2, 5 and 10 ms. An exact bucket refuses none.
func (w *world) regularBursts(x float64) (refused float64) {
	every, at := int64(x*float64(w.policy.TimeFor(w.policy.Units()))), int64(0)
	for _, apart := range []int64{1_000, 2_000, 5_000, 10_000} {
		for range 20 {
			w.burst(w.policy.Burst, apart)
			at += every
			w.run(at)
		}
		at += 3 * lease.Slice // leases end, and the demand is forgotten
		w.run(at)
	}
	return w.refused()
}

// burst sends so many requests to any nodes. It ends when the last has been sent.
func (w *world) burst(requests, apart int64) {
	for range requests {
		w.nodes[w.anyNode()].request()
		boottimetest.Pass(span(apart))
	}
}

// paced has a client of one node keep to 95 % of its rate. The last answer may be under way.
func (w *world) paced() (refused float64) {
	gap := int64(1e6 / perSecond(w.policy) / .95)
	w.traffic(func(*world) (int64, int64) { return gap, 0 }, 200*gap)
	return w.refused()
}

// spendsWhatIsShown has a client send a request, then as many as that one's answer says are
// left, a millisecond apart on any nodes, and then wait for the time in which half of the bucket
// refills.
func (w *world) spendsWhatIsShown() (refused float64) {
	half := w.policy.TimeFor(w.policy.Units() / 2)
	for i := range int64(50) {
		if d := w.ask(); d.Allowed {
			boottimetest.Pass(time.Millisecond)
			w.burst(d.Key.Remaining, 1_000)
		}
		w.run((i + 1) * half)
	}
	return w.refused()
}

// crashLoop has three times the rate, while the last node crashes every so often for two minutes.
// It returns what was admitted of the rate after the first 20 s.
func (w *world) crashLoop(every int64) (share float64) {
	admitted := w.admittedAfter(20e6)
	for at := int64(0); at < 120e6; at += every {
		w.after(at, func() { w.crash(len(w.nodes) - 1) })
	}
	w.traffic(steady(3), 120e6)
	return *admitted / 100 / perSecond(w.policy)
}

// fairness has load times the rate, a part of it on one node. It returns Jain's index over the
// requests, once the burst is spent: 1 = each has the same chance on each node.
func (w *world) fairness(load, hot float64) (jain float64) {
	asked, admitted := map[*node]float64{}, map[*node]float64{}
	rate := load * perSecond(w.policy)
	span := max(int64(40e6), 4_000*w.policy.TimeFor(lease.Token))
	w.decided = func(n *node, d Decision) {
		if w.now() < max(10e6, span/4) {
			return
		}
		if asked[n]++; d.Allowed {
			admitted[n]++
		}
	}
	w.traffic(func(w *world) (int64, int64) {
		if w.random.Float64() < hot {
			return w.gap(rate), 0
		}
		return w.gap(rate), 1 + w.random.Int64N(int64(len(w.nodes)-1))
	}, span)
	all, sum, squares := 0.0, 0.0, 0.0
	for n, of := range asked {
		chance := admitted[n] / of
		all, sum, squares = all+of, sum+chance*of, squares+chance*chance*of
	}
	return sum * sum / all / squares
}
