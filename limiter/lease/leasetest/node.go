package leasetest

import (
	"slices"

	"listedge/limiter/lease"
)

// Node does with a lease what the limiter and its dispatcher do.
type Node struct {
	W            *World
	ID           int64
	Policy       lease.Policy // as far as it has read
	Lease        *lease.Lease
	Ahead        int64   // of its clock
	Pace         float64 // of it
	Stale        int64   // how old a moment it decides by may be
	StopInFlight int64   // its next call stops it for so long, with the answer on its way
	Cut          bool    // nothing it sends arrives
	Deaf         bool    // no answer arrives at it
	NoTraffic    bool    // no requests come to it
	Cold         bool    // it has not counted the others

	dead       bool
	stopped    bool     // like a process that got SIGSTOP
	backlog    []func() // what it has missed
	waiting    []*waiter
	link       *lease.Link
	fleet      lease.Fleet
	counted    int64 // when it last counted the fleet
	away       bool  // the breaker is open
	hasDebts   bool  // it has been, and has not sent all debts yet
	unanswered bool  // its last heartbeat is
	wanted     bool
}

// waiter is a request that waits for the bucket.
type waiter struct{ _ byte }

// NewNode makes a node that is a member of the fleet at once.
func (w *World) NewNode() *Node {
	n := &Node{W: w, ID: 1 + w.Random.Int64N(1<<50), Policy: w.Policy, Ahead: w.Random.Int64N(1_000_000_000), Pace: 1,
		Lease: new(lease.Lease), link: &lease.Link{Budget: Budget}}
	n.Lease.Init(n.Policy, n.Now())
	n.fleet = lease.Fleet{Node: n.ID, Contact: n.Now(), Link: n.link}
	n.fleet.Nodes, n.fleet.Missing = w.beat(n, true)
	n.counted = n.Now()
	n.sweep()
	w.After(w.Random.Int64N(BeatEvery), n.beat)
	return n
}

// Now is the node's clock.
func (n *Node) Now() int64 { return int64(float64(n.W.Now)*n.Pace) + n.Ahead }

// Fleet is what the node knows of its fleet. A count that is old says nothing of
// who is missing.
func (n *Node) Fleet() *lease.Fleet {
	f := n.fleet
	if n.Cold {
		f.Cold, f.Nodes = true, max(f.Nodes, 8)
	} else if n.Now()-n.counted > 2*BeatEvery {
		f.Missing = f.Nodes - 1
	}
	return &f
}

// do is what happens in the node: later, where it is stopped, and never, where it
// is dead.
func (n *Node) do(f func()) {
	switch {
	case n.dead:
	case n.stopped:
		n.backlog = append(n.backlog, f)
	default:
		f()
	}
}

// Do has something happen in the node, when it does anything.
func (n *Node) Do(f func()) { n.do(f) }

// Stop freezes the node for a while. Its clock goes on.
func (n *Node) Stop(span int64) {
	n.stopped = true
	n.W.After(span, func() {
		n.stopped = false
		missed := n.backlog
		n.backlog = nil
		for _, f := range missed {
			n.do(f)
		}
	})
}

// SetPolicy has the node read another policy.
func (n *Node) SetPolicy(p lease.Policy) {
	n.Policy = p
	n.Lease.SetPolicy(p)
	n.want()
}

// Request is one arrival.
func (n *Node) Request() {
	n.W.Offered++
	n.do(n.decide)
}

func (n *Node) decide() {
	moment := n.Now()
	if n.Stale > 0 {
		moment -= n.W.Random.Int64N(n.Stale)
	}
	v := n.Lease.Take(moment)
	if n.Lease.Due(moment) {
		n.want()
	}
	switch {
	case v == lease.Granted:
		n.admit()
	case v == lease.Denied:
		n.W.Asked(n, false)
	case n.away || n.Lease.Unanswered(n.Now(), n.Fleet()):
		n.decideByFallback()
	default:
		n.W.Waited++
		n.await(new(waiter))
		n.want()
	}
}

// await watches r until it is answered or its wait is over.
func (n *Node) await(r *waiter) {
	n.waiting = append(n.waiting, r)
	n.W.After(n.link.Wait(), func() {
		n.do(func() {
			if i := slices.Index(n.waiting, r); i >= 0 {
				n.waiting = slices.Delete(n.waiting, i, i+1)
				n.decideByFallback()
			}
		})
	})
}

// serve answers those who wait, as far as the lease can.
func (n *Node) serve() {
	for len(n.waiting) > 0 {
		v := n.Lease.Retry(n.Now())
		if v == lease.NeedRemote {
			return
		}
		n.waiting = n.waiting[1:]
		if v == lease.Granted {
			n.admit()
		} else {
			n.W.Asked(n, false)
		}
	}
}

func (n *Node) admit() {
	n.W.Admitted++
	n.W.Admit(n)
	n.W.Asked(n, true)
}

// Refund gives a token back, as a request does that turned out to cost nothing.
func (n *Node) Refund() {
	if n.Lease.Refund(n.Now(), false) && !n.Policy.Leased() {
		n.want()
	}
}

func (n *Node) decideByFallback() {
	ok := false
	if n.W.Mode != FailDeny {
		ok, _ = n.Lease.TakeFallback(n.Now(), n.Fleet(), n.W.Mode == FailAllow)
	}
	if ok {
		n.W.Fallback++
		n.admit()
	} else {
		n.W.Asked(n, false)
	}
}

func (n *Node) want() {
	if !n.away && !n.wanted {
		n.wanted = true
		n.W.After(0, func() { n.do(n.send) })
	}
}

// send sends a call, as the dispatcher does.
func (n *Node) send() {
	w, c := n.W, new(lease.Call)
	if n.away || !n.Lease.Begin(c, int64(len(n.waiting)), n.Now(), n.Fleet(), false) {
		n.wanted = false
		n.failWaiters()
		return
	}
	w.Calls++
	sent, over := n.Now(), false
	end := func() {
		over, n.wanted = true, false
		n.serve()
		if len(n.waiting) > 0 || n.Lease.Due(n.Now()) {
			n.want()
		}
	}
	w.After(CallTimeout, func() {
		n.do(func() {
			if over {
				return
			}
			n.noteFailure()
			n.Lease.Fail(c, n.Now())
			over, n.wanted = true, false
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
				w.Bucket.Visit(&answered, w.Now+w.Clock)
			}
			w.Check(&answered)
			back := w.OneWay()
			if w.Lost() || n.Cut || n.Deaf || n.Now()-sent+back > CallTimeout {
				return
			}
			w.InFlight += answered.Granted
			w.leasing += answered.Leased
			w.After(back, func() {
				n.do(func() {
					if over {
						return
					}
					n.link.Note(n.Now() - sent)
					n.Lease.Complete(&answered, sent, n.Now(), n.Fleet())
					end()
				})
				w.InFlight -= answered.Granted
				w.leasing -= answered.Leased
			})
		})
	})
}

// failWaiters has those who wait decided alone.
func (n *Node) failWaiters() {
	waiting := n.waiting
	n.waiting = nil
	for range waiting {
		n.decideByFallback()
	}
}

// noteFailure opens the breaker; a heartbeat that arrives closes it.
func (n *Node) noteFailure() {
	if !n.away {
		n.W.Broken++
		n.away, n.hasDebts = true, true
	}
}

func (n *Node) beat() {
	if !n.dead {
		n.W.After(BeatEvery, n.beat)
		n.do(n.sendBeat)
	}
}

// present reports whether the next heartbeat may say that the node is: not while it
// has no answer or debts to send, for then what is withheld for it pays them.
func (n *Node) present() bool {
	if n.hasDebts && !n.away && !n.Lease.HasDebt() && !n.Lease.InFlight() {
		n.hasDebts = false
	}
	return !n.hasDebts && !n.unanswered && !n.Lease.Unanswered(n.Now(), n.Fleet())
}

// sendBeat sends a heartbeat.
func (n *Node) sendBeat() {
	w, sent, present := n.W, n.Now(), n.present()
	if n.unanswered = true; present {
		n.fleet.Contact = sent
	}
	if w.Lost() || n.Cut {
		return
	}
	w.After(w.OneWay(), func() {
		w.arrive(func() {
			nodes, missing := w.beat(n, present)
			back := w.OneWay()
			if w.Lost() || n.Cut || n.Deaf {
				return
			}
			w.After(back, func() {
				n.do(func() {
					if n.Now()-sent > CallTimeout {
						return
					}
					n.link.Note(n.Now() - sent)
					n.unanswered = false
					n.fleet.Nodes, n.fleet.Missing, n.counted = nodes, missing, n.Now()
					if n.away {
						n.away = false
						n.want()
					}
					if !present && n.present() {
						n.sendBeat()
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
		n.do(func() {
			if due, _ := n.Lease.Sweep(n.Now(), n.Fleet()); due {
				n.want()
			}
		})
		n.sweep()
	})
}
