package leasetest

import "listedge/limiter/lease"

// AfterAFlood has a flood of a minute on all nodes. Then a client waits for Retry-After, and keeps
// to 95 % of the rate. It returns how many of its requests are refused.
func (w *World) AfterAFlood() (refused float64) {
	const flood = int64(60e6)
	rate := PerSecond(w.Policy)
	w.Traffic(func(w *World) (int64, int64) { return w.Gap(max(20, 3*rate)), w.AnyNode() }, flood)
	client := func() { w.Nodes[w.AnyNode()].Request() }
	w.Decided = func(n *Node, ok bool) {
		switch {
		case w.Now <= flood+500_000:
		case ok:
			w.After(int64(1e6/rate/.95), client)
		default:
			refused++
			w.After((n.Lease.RetryIn(n.Now())+999_999)/1e6*1e6, client)
		}
	}
	w.After(flood+600_000, client)
	w.Run(flood + max(int64(120e6), w.Policy.TimeFor(w.Policy.Units())))
	return refused
}

// RegularBursts has a client send whole bursts, one every x refills: 20 with requests 1 ms apart, and
// after a rest as many with 2, 5 and 10 ms. An exact bucket refuses none.
func (w *World) RegularBursts(x float64) (refused float64) {
	every, at := int64(x*float64(w.Policy.TimeFor(w.Policy.Units()))), int64(0)
	for _, apart := range []int64{1_000, 2_000, 5_000, 10_000} {
		for range 20 {
			for k := range w.Policy.Burst {
				w.After(at+k*apart, func() { w.Nodes[w.AnyNode()].Request() })
			}
			at += every
		}
		at += 3 * lease.Slice // leases end, and the demand is forgotten
	}
	w.Run(at)
	return w.Refused()
}

// Paced has a client of one node keep to 95 % of its rate. The last answer may be under way.
func (w *World) Paced() (refused float64) {
	gap := int64(1e6 / PerSecond(w.Policy) / .95)
	w.Traffic(func(*World) (int64, int64) { return gap, 0 }, 200*gap)
	w.Run(200 * gap)
	return w.Refused()
}

// SpendsWhatIsShown has a client send a request, then as many as that one's answer says are
// left, a millisecond apart on any nodes, and then wait for the time in which half of the bucket
// refills.
func (w *World) SpendsWhatIsShown() (refused float64) {
	asks := false
	w.Decided = func(n *Node, ok bool) {
		if asks && ok {
			for i := range n.Lease.Status(n.Now()).Remaining {
				w.After((1+i)*1000, func() { w.Nodes[w.AnyNode()].Request() })
			}
		}
		asks = false
	}
	half := w.Policy.TimeFor(w.Policy.Units() / 2)
	for i := range int64(50) {
		w.After(i*half, func() {
			asks = true
			w.Nodes[w.AnyNode()].Request()
		})
	}
	w.Run(50 * half)
	return w.Refused()
}

// CrashLoop has three times the rate, while the last node crashes every so often for two minutes.
// It returns what was admitted of the rate after the first 20 s.
func (w *World) CrashLoop(every int64) (share float64) {
	admitted := 0
	w.Decided = func(_ *Node, ok bool) {
		if ok && w.Now > 20e6 {
			admitted++
		}
	}
	for at := int64(0); at < 120e6; at += every {
		w.After(at, func() { w.Crash(len(w.Nodes) - 1) })
	}
	w.Traffic(Steady(3), 120e6)
	w.Run(120e6)
	return float64(admitted) / 100 / PerSecond(w.Policy)
}

// Fairness has load times the rate, a part of it on one node. It returns Jain's index over the
// requests, once the burst is spent: 1 = each has the same chance on each node.
func (w *World) Fairness(load, hot float64) (jain float64) {
	asked, admitted := map[*Node]float64{}, map[*Node]float64{}
	rate := load * PerSecond(w.Policy)
	span := max(int64(40e6), 4_000*w.Policy.TimeFor(lease.Token))
	w.Decided = func(n *Node, ok bool) {
		if w.Now < span/4 {
			return
		}
		if asked[n]++; ok {
			admitted[n]++
		}
	}
	w.Measure(func(w *World) (int64, int64) {
		if w.Random.Float64() < hot {
			return w.Gap(rate), 0
		}
		return w.Gap(rate), 1 + w.Random.Int64N(int64(len(w.Nodes)-1))
	}, span)
	all, sum, squares := 0.0, 0.0, 0.0
	for n, of := range asked {
		chance := admitted[n] / of
		all, sum, squares = all+of, sum+chance*of, squares+chance*chance*of
	}
	return sum * sum / all / squares
}
