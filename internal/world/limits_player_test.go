package world_test

import (
	"context"
	"math"
	"time"

	"listedge/internal/world"
	"listedge/limiter"
	"listedge/limiter/lease"
)

// player plays a world of limits as its seed decides.
type player struct {
	*limits
	tokens int64 // of the quota, at first
	calm   bool  // nothing fails: clients that keep to their limit are judged, too
	step   time.Duration
	loads  []*load // of the clients

	older  []*world.Redis // what Redis had: a replica, and a dump
	forgot time.Time      // when it lost what it had
}

// load is how the requests of a client come.
type load struct {
	times  float64  // the rate
	sticky *limited // nil = to any node
	whole  bool     // bursts come at once
	until  time.Time
}

// playLimits plays a world of limits.
func playLimits(of world.Play) played {
	p := newPlayer(&of)
	steps := 0
	for steps < of.Steps && p.broken == "" {
		steps++
		p.Cast()
		p.happen()
		p.send()
		p.judgeHeld()
	}
	p.end()
	lived := time.Since(p.began) * time.Duration(len(p.nodes))
	p.close()
	return played{p.counts, steps, lived, p.broken}
}

// policies are what clients may be limited to.
var policies = []struct {
	rate  float64
	burst int64
}{{50, 100}, {10, 20}, {5. / 60, 5}, {10, 10}, {100, 300}, {333, 40}, {1, 1}, {1, 100}, {10, 50}, {50, 100}, {300, 300}, {5, 1}}

func newPlayer(of *world.Play) *player {
	p := &player{limits: newLimits(of, limiter.FailDeny)}
	r := p.Rand()
	p.calm = r.IntN(3) == 0
	if r.IntN(2) == 0 || p.calm {
		p.mode = limiter.FailLocal
	} else if r.IntN(10) == 0 {
		p.mode = limiter.FailAllow
	}
	p.pace = .99 + r.Float64()/50
	if p.calm {
		p.pace = 1
	}
	if r.IntN(3) == 0 {
		p.far(time.Duration(200+r.IntN(4_000)) * time.Microsecond)
	}
	p.join([]int{1, 2, 2, 3, 3, 4, 5, 8, 8, 16}[r.IntN(10)])
	p.run(3 * time.Second)
	limit := policies[r.IntN(len(policies))]
	key, workspace, tokens := rated(limit.rate, limit.burst), limiter.Policy{}, int64(0)
	key.Version = 1
	clients := 1
	switch r.IntN(6) {
	case 0:
		clients, workspace = 2, rated(1.5*limit.rate, limit.burst*3/2+1)
	case 1, 2:
		tokens = int64(float64(limit.burst) + limit.rate*80)
		if r.IntN(2) == 0 {
			key = limiter.Policy{}
		}
	}
	p.tokens = tokens
	for range clients {
		p.newClient(key, workspace, tokens)
		p.loads = append(p.loads, &load{})
	}
	p.step = 100 * time.Millisecond
	if limit.rate > 90 {
		p.step = 20 * time.Millisecond
	}
	p.Tracef("%d nodes, %s, calm %t, %+v, workspace %+v, quota %d, %d clients", len(p.nodes), p.mode, p.calm, key, workspace, tokens, clients)
	return p
}

func rated(rate float64, burst int64) limiter.Policy {
	p, err := limiter.NewPolicy(rate, burst)
	if err != nil {
		panic(err)
	}
	return p
}

// perSecond is how many requests a client may send.
func (c *client) perSecond() float64 {
	if c.policy.Burst > 0 {
		return float64(c.policy.Rate) / lease.Token
	}
	return float64(c.tokens) / 60
}

// send sends the requests of a step.
func (p *player) send() {
	r := p.Rand()
	for i, l := range p.loads {
		c := p.clients[i]
		if time.Now().After(l.until) || p.Happens(world.ChangesLoad, 400) {
			*l = load{times: []float64{.5, .8, .8, .95, 1, 1.5, 3, 10, 0, .02}[r.IntN(10)], whole: r.IntN(8) == 0, until: time.Now().Add(p.span(4, 20))}
			if r.IntN(3) == 0 {
				l.sticky = p.anyNode()
			}
			p.Tracef("%s sends %g times its rate, to %v, whole bursts: %t", c.name, l.times, l.sticky, l.whole)
		}
		mean := l.times * c.perSecond() * p.step.Seconds()
		n := int(mean + r.ExpFloat64()*math.Sqrt(mean)/2)
		if mean < 1 {
			n = 0
			if r.Float64() < mean {
				n = 1
			}
		}
		most := 12
		if l.whole {
			n, most = 0, 300
			if r.Float64() < mean/float64(max(1, c.policy.Burst)) {
				n = int(c.policy.Burst)
			}
		}
		for range min(n, most) {
			at := time.Duration(r.Int64N(int64(p.step)))
			p.After(at, func() {
				n := l.sticky
				if n == nil || n.dead || n.idle {
					n = p.anyNode()
				}
				p.request(n, c)
			})
		}
	}
	p.run(p.step)
}

// span draws a time between two numbers of seconds.
func (p *player) span(from, to int) time.Duration {
	return time.Duration(from)*time.Second + time.Duration(p.Rand().Int64N(int64(to-from)*int64(time.Second)))
}

// alone says that nodes may go on without Redis for a while.
func (p *player) alone(d time.Duration) {
	if p.mode != limiter.FailDeny {
		p.fail(1, d)
		left := float64(p.quota.most - p.quota.admitted)
		p.quota.spare += 2 + max(0, left)*1.25/float64(len(p.nodes))
	}
}

// happen lets things happen.
func (p *player) happen() {
	r := p.Rand()
	if p.calm {
		return
	}
	node := p.nodes[r.IntN(len(p.nodes))]
	switch {
	case p.Happens(world.Crashes, 250):
		p.crash(node)
	case p.Happens(world.Freezes, 250):
		d := p.span(0, 15)
		p.Tracef("%s freezes for %s", node, d)
		p.alone(d)
		p.slowest = time.Second // which its call seems to take
		if r.IntN(2) == 0 {
			node.stopSent = d
		} else {
			p.freeze(node, d)
		}
	case p.Happens(world.Leaps, 400):
		d := p.span(0, 20)
		p.Tracef("the clock of %s leaps by %s", node, d)
		if p.mode != limiter.FailDeny {
			p.failAgain(1)
		}
		p.slowest = time.Second // which an answer under way seems to take
		node.machine.Sleep(d)
	case p.Happens(world.CutsOff, 250):
		d := p.span(1, 25)
		p.cutOff(node, d)
		for _, n := range p.nodes {
			if several := r.IntN(2) == 0; several && n != node && !n.cut {
				p.cutOff(n, d)
			}
		}
	case p.Happens(world.Deafens, 400):
		d := p.span(1, 15)
		p.Tracef("%s gets no answers for %s", node, d)
		p.alone(d)
		node.deaf = true
		p.After(d, func() { node.deaf = false })
	case p.Happens(world.Loses, 300):
		p.storm()
	case p.Happens(world.Hangs, 400):
		d := time.Duration(r.Int64N(int64(4 * time.Second)))
		p.Tracef("Redis hangs for %s", d)
		for range p.nodes {
			p.alone(d)
		}
		p.hang(d)
	case p.Happens(world.SlowsDown, 400):
		d := p.span(1, 10)
		trip := time.Duration(10+r.IntN(90)) * time.Millisecond
		p.Tracef("Redis takes %s for %s", trip, d)
		p.alone(d)
		before := p.delay
		p.far(trip)
		p.After(d, func() { p.delay = before })
	case p.Happens(world.RedisSteps, 300):
		d := r.Int64N(30_000_000)
		if r.IntN(2) == 0 {
			d = r.Int64N(900_000)
		}
		p.Tracef("the clock of Redis steps back by %d us", d)
		p.clock -= d
		p.alone(0)
	case p.Happens(world.LosesLimits, 1200):
		p.loseLimits()
	case p.Happens(world.ChangesPolicy, 500):
		p.changePolicy()
	case p.Happens(world.ChangesQuota, 500):
		p.changeQuota()
	case p.Happens(world.Joins, 800):
		if len(p.nodes) < 16 {
			p.Tracef("a node joins")
			p.join(1)
		}
	case p.Happens(world.Leaves, 800):
		p.leave(node)
	}
	if p.Chance(100) {
		p.older = append(p.older[max(0, len(p.older)-4):], p.redis.Fork("a", 0))
	}
}

// ends says that a run of a node ends. What it admitted without Redis and Redis has not debited, at most its part of a burst, nobody
// debits any more. So outages with such an end between them cost more than one long outage.
func (p *player) ends(n *limited) {
	s := n.Stats()
	if p.mode != limiter.FailDeny && s.Owing > 0 {
		p.Tracef("%s ends, and owes", n)
		p.failAgain(1 / float64(max(1, s.Nodes)))
	}
}

// crash restarts a node. What it held is lost.
func (p *player) crash(n *limited) {
	p.Tracef("%s crashes", n)
	if n.dead {
		return
	}
	p.ends(n)
	n.kill()
	for _, c := range p.clients {
		if c.tokens > 0 {
			p.After(time.Second, func() { p.quota.lost++ })
		}
	}
	idle := n.idle
	p.start(n.id).idle = idle
}

// cutOff cuts a node off, and often takes it out of the load balancer meanwhile, and back for a flood.
func (p *player) cutOff(n *limited, d time.Duration) {
	p.Tracef("%s is cut off for %s", n, d)
	p.alone(d)
	if p.Chance(3) {
		n.lateBeat = 4 * time.Second
	} else {
		n.cut = true
	}
	p.After(d, func() { n.cut, n.lateBeat = false, 0 })
	if others := p.talking(n); p.Chance(2) && others {
		n.idle = true
		p.After(p.span(1, 25), func() { n.idle = false })
	}
}

// talking reports whether other nodes get requests.
func (p *player) talking(but *limited) bool {
	for _, n := range p.nodes {
		if n != but && !n.idle {
			return true
		}
	}
	return false
}

// storm delays and loses messages for a while.
func (p *player) storm() {
	d := p.span(1, 6)
	p.Tracef("messages are late, and lost, for %s", d)
	for range p.nodes {
		p.alone(d)
	}
	before := p.delay
	p.slowest = time.Second
	p.delay = func() time.Duration {
		switch r := p.Rand(); {
		case r.IntN(3) > 0:
			return before()
		case r.IntN(50) == 0:
			return time.Duration(r.Int64N(int64(3 * time.Second)))
		default:
			return time.Duration(r.Int64N(int64(15 * time.Millisecond)))
		}
	}
	p.loses = func() bool { return p.Rand().IntN(10) == 0 }
	p.After(d, func() { p.delay, p.loses = before, func() bool { return false } })
}

// loseLimits: Redis is empty, or has what it had a while ago.
func (p *player) loseLimits() {
	p.forgot = time.Now()
	p.failAgain(1.5) // nodes hold up to a half
	for _, spent := range p.quota.spent {
		p.quota.spare += float64(spent)
	}
	if p.Chance(2) || len(p.older) == 0 {
		p.Tracef("Redis loses all limits")
		p.redis.Lose(nil)
		return
	}
	p.Tracef("Redis loses the latest of its limits")
	p.redis.Lose(p.older[p.Rand().IntN(len(p.older))])
}

// changePolicy gives a client another rate and burst, which nodes hear of one by one, or not.
func (p *player) changePolicy() {
	r, c := p.Rand(), p.clients[p.Rand().IntN(len(p.clients))]
	if c.policy.Burst == 0 {
		return
	}
	rate, burst := c.perSecond()*(.3+2*r.Float64()), 1+r.Int64N(2*c.policy.Burst)
	if rate > 400 || rate < .05 {
		rate = 10
	}
	next := rated(rate, burst)
	next.Version = c.policy.Version + 1
	c.policy = next
	p.Tracef("%s may send %.3g/s, burst %d from now on", c.name, rate, burst)
	for _, n := range p.nodes {
		p.After(time.Duration(r.Int64N(int64(2*time.Second))), func() {
			h := n.of(c)
			if next.Version > h.policy.Version {
				h.policy = next
				n.apply(c)
			}
		})
	}
}

// changeQuota changes the quota, of which nodes hear one by one.
func (p *player) changeQuota() {
	r, c := p.Rand(), p.clients[0]
	if c.tokens == 0 {
		return
	}
	c.tokens = 1 + r.Int64N(3*p.tokens)
	p.Tracef("the quota is %d from now on", c.tokens)
	q := &p.quota
	q.most, q.next, q.settled = max(q.most, q.next, c.tokens), c.tokens, time.Now().Add(30*time.Second)
	for _, n := range p.nodes {
		p.After(time.Duration(r.Int64N(int64(2*time.Second))), func() {
			n.of(c).tokens = c.tokens
			n.apply(c)
		})
	}
}

// leave has a node close.
func (p *player) leave(n *limited) {
	if len(p.nodes) < 2 || !p.talking(n) || n.cut {
		return
	}
	p.Tracef("%s leaves", n)
	n.idle = true
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = n.Close(ctx)
	}()
	p.After(2*time.Second, func() {
		if !n.dead { // it has not crashed meanwhile
			p.ends(n)
			n.dead = true
			p.start(n.id)
		}
	})
}

// judgeHeld: leased tokens go on counting in their buckets for as long as nodes may spend them.
func (p *player) judgeHeld() {
	if p.tokens > 0 || time.Since(p.forgot) < 3*lease.Slice*time.Microsecond {
		return
	}
	spendable, held := int64(0), p.granted
	for _, n := range p.nodes {
		if !n.dead {
			spendable += n.Stats().LeasedHeld
		}
	}
	for key := range p.buckets {
		b, _ := p.bucket(key)
		held += b.Held(p.now())
	}
	if spendable > held {
		p.breaks(neverOver, "nodes may spend %d leased tokens, of which Redis counts %d", spendable, held)
	}
}

// end judges what was admitted in all.
func (p *player) end() {
	for _, c := range p.clients {
		if p.calm && len(c.both()) == 1 && c.policy.Burst > 0 && c.ideal > 200 && p.broken == "" {
			p.Tracef("%s: %d offered, %d admitted, %d by an exact bucket", c.name, c.offered, c.admitted, c.ideal)
			if c.share() < .9 {
				p.breaks(freeRefusal, "%d admitted, and %d by an exact bucket: %.1f %%", c.admitted, c.ideal, 100*c.share())
			}
		}
	}
}
