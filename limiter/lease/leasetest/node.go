package leasetest

import (
	"slices"

	"listedge/limiter/lease"
)

// Node simulates a node of the limiter: it drives a real lease as limiter does.
type Node struct {
	W            *World
	ID           int64
	Policy       lease.Policy // the one that it has read last
	Lease        lease.Lease
	ClockOffset  int64 // its clock is World.Now*ClockRate + ClockOffset
	ClockRate    float64
	MaxTimeAge   int64 // how old the time may be that a request is decided at
	StopInFlight int64 // if not 0, its next call stops it for so long, with the answer on its way
	Cut          bool  // no message from it arrives
	Deaf         bool  // no answer to it arrives
	NoTraffic    bool  // it gets no requests
	Cold         bool  // it has not counted the other nodes

	dead         bool
	stoppedUntil int64       // like a process after SIGSTOP
	pending      bool        // a call is queued or in flight
	answer       *lease.Call // of the call in flight, on its way; nil = none is
	waiting      []int64     // requests that wait for the bucket, by World.Waited
	link         *lease.Link
	fleet        lease.Fleet
	counted      int64 // when it last counted the fleet
	away         bool  // the breaker is open
	hasDebts     bool  // the breaker was open, and not all debts have been sent since
	unanswered   bool  // its last heartbeat has no answer
}

// newNode makes a node. It is a member of the fleet at once.
func (w *World) newNode(id int64) *Node {
	n := &Node{W: w, ID: id, Policy: w.Policy, ClockOffset: w.Random.Int64N(1_000_000_000), ClockRate: 1, link: &lease.Link{Budget: Budget}}
	n.Lease.Init(n.Policy, n.Now())
	n.fleet, n.counted = lease.Fleet{Contact: n.Now(), Link: n.link}, n.Now()
	n.fleet.Nodes, n.fleet.Missing = w.heartbeat(id, true)
	n.every(100_000, func() {
		if n.Lease.Sweep(n.Now(), n.Fleet()) {
			n.requestCall()
		}
	})
	w.After(w.Random.Int64N(HeartbeatEvery), func() {
		n.every(HeartbeatEvery, n.sendHeartbeat)
		n.Do(n.sendHeartbeat)
	})
	return n
}

// Now is the node's clock.
func (n *Node) Now() int64 { return int64(float64(n.W.Now)*n.ClockRate) + n.ClockOffset }

// Fleet is what the node knows about its fleet. If its count is old, all other nodes may
// be missing.
func (n *Node) Fleet() *lease.Fleet {
	f := n.fleet
	if n.Cold {
		f.Cold, f.Nodes = true, max(f.Nodes, 8)
	} else if n.Now()-n.counted > 2*HeartbeatEvery {
		f.Missing = f.Nodes - 1
	}
	return &f
}

// Do runs f in the node. If the node is stopped, f runs when it goes on. If the node is
// dead, f never runs.
func (n *Node) Do(f func()) {
	switch w := n.W; {
	case n.dead:
	case w.Now < n.stoppedUntil:
		w.After(n.stoppedUntil-w.Now, func() { n.Do(f) })
	default:
		f()
	}
}

// every runs f in the node once in each period, while the node lives.
func (n *Node) every(period int64, f func()) {
	n.W.After(period, func() {
		if !n.dead {
			n.every(period, f)
			n.Do(f)
		}
	})
}

// Stop freezes the node for a while. Its clock goes on.
func (n *Node) Stop(span int64) { n.stoppedUntil = max(n.stoppedUntil, n.W.Now+span) }

// SetPolicy makes the node read another policy.
func (n *Node) SetPolicy(p lease.Policy) {
	n.Policy = p
	n.Lease.SetPolicy(p)
	n.requestCall()
}

// Request is one request that arrives at the node.
func (n *Node) Request() {
	n.W.Offered++
	n.Do(n.decide)
}

func (n *Node) decide() {
	w, at := n.W, n.Now()
	if n.MaxTimeAge > 0 {
		at -= w.Random.Int64N(n.MaxTimeAge)
	}
	outcome := n.Lease.Take(at)
	if n.Lease.Due(at) {
		n.requestCall()
	}
	switch {
	case outcome != lease.NeedRemote:
		n.decided(outcome == lease.Granted)
	case n.away || n.Lease.Unanswered(n.Now(), n.Fleet()):
		n.decideByFallback()
	default:
		w.Waited++
		request := w.Waited
		n.waiting = append(n.waiting, request)
		w.After(n.link.Wait(), func() {
			n.Do(func() {
				if i := slices.Index(n.waiting, request); i >= 0 {
					n.waiting = slices.Delete(n.waiting, i, i+1)
					n.decideByFallback()
				}
			})
		})
		n.requestCall()
	}
}

// answerWaiters answers the waiting requests that the lease can decide.
func (n *Node) answerWaiters() {
	for len(n.waiting) > 0 {
		outcome := n.Lease.Retry(n.Now())
		if outcome == lease.NeedRemote {
			return
		}
		n.waiting = n.waiting[1:]
		n.decided(outcome == lease.Granted)
	}
}

// failWaiters decides the waiting requests without Redis.
func (n *Node) failWaiters() {
	waiting := n.waiting
	n.waiting = nil
	for range waiting {
		n.decideByFallback()
	}
}

func (n *Node) decided(ok bool) {
	if ok {
		n.W.Admitted++
		n.W.Over = max(n.W.Over, n.W.oracle.Admit(n.W.Now))
	}
	n.W.Decided(n, ok)
}

func (n *Node) decideByFallback() {
	ok := false
	if !n.W.Denies {
		ok, _ = n.Lease.TakeFallback(n.Now(), n.Fleet(), false)
	}
	n.decided(ok)
}

// Refund gives a token back, as a request does that turned out to cost nothing.
func (n *Node) Refund() {
	if n.Lease.Refund(n.Now(), false) && !n.Policy.Leased() {
		n.requestCall()
	}
}

func (n *Node) requestCall() {
	if !n.away && !n.pending {
		n.pending = true
		n.W.After(0, func() { n.Do(n.send) })
	}
}

// send sends a call, as a shard does.
func (n *Node) send() {
	w, c := n.W, new(lease.Call)
	if n.away || !n.Lease.Begin(c, int64(len(n.waiting)), n.Now(), n.Fleet(), false) {
		n.pending = false
		n.failWaiters()
		return
	}
	w.Calls++
	sent, ended := n.Now(), false
	end := func(how func()) func() {
		return func() {
			if !ended {
				ended, n.pending, n.answer = true, false, nil
				how()
			}
		}
	}
	failed := end(func() {
		if !n.away { // the breaker opens; the answer to a heartbeat closes it
			w.Broken++
			n.away, n.hasDebts = true, true
		}
		n.Lease.Fail(c, n.Now())
		n.failWaiters()
	})
	w.After(CallTimeout, func() { n.Do(failed) })
	if n.StopInFlight > 0 {
		n.Stop(n.StopInFlight)
		n.StopInFlight = 0
	}
	n.exchange(func(lost bool) {
		if w.Execute(c, w.Now+w.Clock); !lost && !ended {
			n.answer = c
		}
	}, end(func() {
		n.link.Record(n.Now() - sent)
		n.Lease.Complete(c, sent, n.Now(), n.Fleet())
		n.answerWaiters()
		if len(n.waiting) > 0 || n.Lease.Due(n.Now()) {
			n.requestCall()
		}
	}))
}

// exchange sends a message to the bucket's server, which serves it, and lets the node read the
// answer. Either may be lost.
func (n *Node) exchange(serve func(lost bool), answered func()) {
	w := n.W
	if w.Lost() || n.Cut {
		return
	}
	w.After(w.OneWay(), func() {
		w.After(max(0, w.hungUntil-w.Now), func() {
			back := w.OneWay()
			lost := w.Lost() || n.Cut || n.Deaf
			if serve(lost); !lost {
				w.After(back, func() { n.Do(answered) })
			}
		})
	})
}

// present reports whether the next heartbeat may report the node present. It may not
// while an answer is outstanding or debts have to be sent: until then the others go on
// withholding the node's part, and the debts are paid from that.
func (n *Node) present() bool {
	if n.hasDebts && !n.away && !n.Lease.Owes() {
		n.hasDebts = false
	}
	return !n.hasDebts && !n.unanswered && !n.Lease.Unanswered(n.Now(), n.Fleet())
}

func (n *Node) sendHeartbeat() {
	sent, present := n.Now(), n.present()
	if n.unanswered = true; present {
		n.fleet.Contact = sent
	}
	var nodes, missing int64
	n.exchange(func(bool) { nodes, missing = n.W.heartbeat(n.ID, present) }, func() {
		if n.Now()-sent > CallTimeout {
			return
		}
		n.link.Record(n.Now() - sent)
		n.unanswered = false
		n.fleet.Nodes, n.fleet.Missing, n.counted = nodes, missing, n.Now()
		if n.away {
			n.away = false
			n.requestCall()
		}
		if !present && n.present() {
			n.sendHeartbeat()
		}
	})
}
