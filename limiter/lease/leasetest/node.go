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
	Lease        *lease.Lease
	ClockOffset  int64 // its clock is World.Now*ClockRate + ClockOffset
	ClockRate    float64
	MaxTimeAge   int64 // how old the time may be that a request is decided at
	StopInFlight int64 // if not 0, its next call stops it for so long, with the answer on its way
	Cut          bool  // no message from it arrives
	Deaf         bool  // no answer to it arrives
	NoTraffic    bool  // it gets no requests
	Pending      bool  // a call is queued or in flight
	Cold         bool  // it has not counted the other nodes

	dead       bool
	stopped    bool     // like a process after SIGSTOP
	backlog    []func() // events since it was stopped
	waiting    []*waiter
	link       *lease.Link
	fleet      lease.Fleet
	counted    int64 // when it last counted the fleet
	away       bool  // the breaker is open
	hasDebts   bool  // the breaker was open, and not all debts have been sent since
	unanswered bool  // its last heartbeat has no answer
}

// waiter is a request that waits for the bucket.
type waiter struct{ _ byte }

// newNode makes a node. It is a member of the fleet at once.
func (w *World) newNode(id int64) *Node {
	n := &Node{W: w, ID: id, Policy: w.Policy, ClockOffset: w.Random.Int64N(1_000_000_000), ClockRate: 1,
		Lease: new(lease.Lease), link: &lease.Link{Budget: Budget}}
	n.Lease.Init(n.Policy, n.Now())
	n.fleet = lease.Fleet{Contact: n.Now(), Link: n.link}
	n.fleet.Nodes, n.fleet.Missing = w.heartbeat(n, true)
	n.counted = n.Now()
	n.sweep()
	w.After(w.Random.Int64N(HeartbeatEvery), n.heartbeat)
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
	switch {
	case n.dead:
	case n.stopped:
		n.backlog = append(n.backlog, f)
	default:
		f()
	}
}

// Stop freezes the node for a while. Its clock goes on.
func (n *Node) Stop(span int64) {
	n.stopped = true
	n.W.After(span, func() {
		n.stopped = false
		missed := n.backlog
		n.backlog = nil
		for _, f := range missed {
			n.Do(f)
		}
	})
}

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
	at := n.Now()
	if n.MaxTimeAge > 0 {
		at -= n.W.Random.Int64N(n.MaxTimeAge)
	}
	v := n.Lease.Take(at)
	if n.Lease.Due(at) {
		n.requestCall()
	}
	switch {
	case v == lease.Granted:
		n.admit()
	case v == lease.Denied:
		n.W.Decided(n, false)
	case n.away || n.Lease.Unanswered(n.Now(), n.Fleet()):
		n.decideByFallback()
	default:
		n.W.Waited++
		n.await(new(waiter))
		n.requestCall()
	}
}

// await keeps r until it is answered or its time to wait is over.
func (n *Node) await(r *waiter) {
	n.waiting = append(n.waiting, r)
	n.W.After(n.link.Wait(), func() {
		n.Do(func() {
			if i := slices.Index(n.waiting, r); i >= 0 {
				n.waiting = slices.Delete(n.waiting, i, i+1)
				n.decideByFallback()
			}
		})
	})
}

// answerWaiters answers the waiting requests that the lease can decide.
func (n *Node) answerWaiters() {
	for len(n.waiting) > 0 {
		v := n.Lease.Retry(n.Now())
		if v == lease.NeedRemote {
			return
		}
		n.waiting = n.waiting[1:]
		if v == lease.Granted {
			n.admit()
		} else {
			n.W.Decided(n, false)
		}
	}
}

func (n *Node) admit() {
	n.W.Admitted++
	n.W.Over = max(n.W.Over, n.W.oracle.Admit(n.W.Now))
	n.W.Admit(n)
	n.W.Decided(n, true)
}

// Refund gives a token back, as a request does that turned out to cost nothing.
func (n *Node) Refund() {
	if n.Lease.Refund(n.Now(), lease.FromLease) && !n.Policy.Leased() {
		n.requestCall()
	}
}

func (n *Node) decideByFallback() {
	ok := false
	if !n.W.Denies {
		ok, _ = n.Lease.TakeFallback(n.Now(), n.Fleet(), false)
	}
	if ok {
		n.W.Fallback++
		n.admit()
	} else {
		n.W.Decided(n, false)
	}
}

func (n *Node) requestCall() {
	if !n.away && !n.Pending {
		n.Pending = true
		n.W.After(0, func() { n.Do(n.send) })
	}
}

// send sends a call, as the dispatcher does.
func (n *Node) send() {
	w, c := n.W, new(lease.Call)
	if n.away || !n.Lease.Begin(c, int64(len(n.waiting)), n.Now(), n.Fleet(), false) {
		n.Pending = false
		n.failWaiters()
		return
	}
	w.Calls++
	sent, over := n.Now(), false
	end := func() {
		over, n.Pending = true, false
		n.answerWaiters()
		if len(n.waiting) > 0 || n.Lease.Due(n.Now()) {
			n.requestCall()
		}
	}
	w.After(CallTimeout, func() {
		n.Do(func() {
			if over {
				return
			}
			n.openBreaker()
			n.Lease.Fail(c, n.Now())
			over, n.Pending = true, false
			n.failWaiters()
		})
	})
	if n.StopInFlight > 0 {
		n.Stop(n.StopInFlight)
		n.StopInFlight = 0
	}
	if w.Lost() || n.Cut {
		return
	}
	w.After(w.OneWay(), func() {
		w.arrive(func() {
			answered := *c
			if w.Rule != nil {
				w.Rule(&answered, w.Now+w.Clock)
			} else {
				w.Bucket.Execute(&answered, w.Now+w.Clock)
			}
			w.Check(&answered)
			back := w.OneWay()
			if w.Lost() || n.Cut || n.Deaf || n.Now()-sent+back > CallTimeout {
				return
			}
			w.InFlight += answered.Granted
			w.leasing += answered.Leased
			w.After(back, func() {
				n.Do(func() {
					if over {
						return
					}
					n.link.Record(n.Now() - sent)
					n.Lease.Complete(&answered, sent, n.Now(), n.Fleet())
					end()
				})
				w.InFlight -= answered.Granted
				w.leasing -= answered.Leased
			})
		})
	})
}

// failWaiters decides the waiting requests without Redis.
func (n *Node) failWaiters() {
	waiting := n.waiting
	n.waiting = nil
	for range waiting {
		n.decideByFallback()
	}
}

// openBreaker opens the breaker. The answer to a heartbeat closes it.
func (n *Node) openBreaker() {
	if !n.away {
		n.W.Broken++
		n.away, n.hasDebts = true, true
	}
}

func (n *Node) heartbeat() {
	if !n.dead {
		n.W.After(HeartbeatEvery, n.heartbeat)
		n.Do(n.sendHeartbeat)
	}
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

// sendHeartbeat sends a heartbeat.
func (n *Node) sendHeartbeat() {
	w, sent, present := n.W, n.Now(), n.present()
	if n.unanswered = true; present {
		n.fleet.Contact = sent
	}
	if w.Lost() || n.Cut {
		return
	}
	w.After(w.OneWay(), func() {
		w.arrive(func() {
			nodes, missing := w.heartbeat(n, present)
			back := w.OneWay()
			if w.Lost() || n.Cut || n.Deaf {
				return
			}
			w.After(back, func() {
				n.Do(func() {
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
			})
		})
	})
}

func (n *Node) sweep() {
	n.W.After(100_000, func() {
		if n.dead {
			return
		}
		n.Do(func() {
			if n.Lease.Sweep(n.Now(), n.Fleet()) {
				n.requestCall()
			}
		})
		n.sweep()
	})
}
