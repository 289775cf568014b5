package world_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"listedge/internal/boottime/boottimetest"
	"listedge/internal/world"
	"listedge/limiter"
)

// A world of limits: a fleet of real limiters in virtual time, on real clients of world.Redis, which delays and loses
// messages. Whoever plays (limits_player_test.go: a seed; limits_figures_test.go: scenarios whose figures the documentation
// has) sends requests, and what they are answered is judged by docs/GUARANTEES.md (limits_judge_test.go).
//
// All that limiters do at one moment is settled before the world goes on, and sorted. So the world decides every order.

// limits is one run. Times of Redis are microseconds.
type limits struct {
	*world.Dice
	*world.Network
	judge

	redis   *world.Redis
	clock   int64     // by which its clock was set
	pace    float64   // of its clock
	hungTo  time.Time // until then it does nothing, like a process after SIGSTOP
	began   time.Time
	nodes   []*limited
	clients []*client
	started int // nodes, ever
	mode    limiter.FailureMode

	delay func() time.Duration // draws that of a message
	loses func() bool          // draws whether a message is lost

	counts map[string]int

	mu       sync.Mutex // guards the rest
	answered []*request // since the world last looked
}

// limited is a node.
type limited struct {
	*limiter.Limiter
	world    *limits
	id       string
	number   int // no other node of the world ever had it
	machine  *boottimetest.Machine
	handles  map[*client]*handles
	beats    int   // that said that it is present, and were answered
	counted  int64 // the number of its latest call to a quota that Redis executed
	dead     bool
	idle     bool          // it gets no requests
	cut      bool          // no message from it arrives
	deaf     bool          // no answer to it arrives
	stopSent time.Duration // its next call stops it for so long, with the answer on its way
	lateBeat time.Duration // it is cut off once it has sent its next heartbeat, which arrives so late

	frozenTo time.Time // until then it is like a process after SIGSTOP; the world's mu guards it
}

// handles are what a node limits a client by.
type handles struct {
	key, workspace *limiter.Bucket
	quota          *limiter.Counter
	policy         limiter.Policy // that the node knows
	tokens         int64          // likewise, of the quota
}

// message is all that a node sends at one moment: into how many pipelines it puts that is chance, and of no account.
type message struct {
	world.Message
	node  *limited
	pipes []*pipe
	sent  time.Time
}

// pipe is a pipeline under way.
type pipe struct {
	*world.RedisCall
	node  *limited
	calls []*scriptCall
}

// scriptCall is one call of a script, as far as the judge looks at it.
type scriptCall struct {
	key     string
	beats   bool
	bucket  *world.BucketCall // nil = it is to no bucket
	number  int64             // of a quota: which call of its node this is
	floor   int64             // likewise: what its node has spent, or may spend
	numbers []any             // the answer; nil = there is none yet
	granted int64             // of a bucket
	leased  int64
	taken   int64 // of a quota
}

// request is a request of a client.
type request struct {
	number   int
	node     *limited
	client   *client
	ideal    bool // an exact bucket admits it
	arrived  time.Time
	ended    time.Time // zero = not yet
	decision limiter.Decision
}

func (r *request) done() bool { return !r.ended.IsZero() }

// newLimits begins a run, in a bubble.
func newLimits(of *world.Play, mode limiter.FailureMode) *limits {
	w := &limits{Dice: world.NewDice(of, time.Now), pace: 1, began: time.Now(), mode: mode, counts: map[string]int{}}
	w.Network = world.NewNetwork(w.Dice)
	w.redis = world.NewRedis("a", func() time.Time { return time.UnixMicro(w.now()) })
	w.Cast()
	w.clock = w.Rand().Int64N(10_000_000)
	w.far(100 * time.Microsecond)
	w.loses = func() bool { return false }
	return w
}

// close ends all nodes, and lets whatever waits end.
func (w *limits) close() {
	w.Clear()
	for _, n := range w.nodes {
		n.kill()
	}
	w.run(time.Hour)
}

// now is Redis' time.
func (w *limits) now() int64 {
	return 1_000_000_000_000_000 + int64(float64(time.Since(w.began).Microseconds())*w.pace) + w.clock
}

// far has calls take roundTrip, 20 % more or less.
func (w *limits) far(roundTrip time.Duration) *limits {
	w.slowest = max(w.slowest, 2*roundTrip)
	w.delay = func() time.Duration {
		return roundTrip*4/10 + time.Duration(w.Rand().Int64N(max(1, int64(roundTrip/5))))
	}
	return w
}

// hang stops Redis for a while. After that it executes what has arrived.
func (w *limits) hang(d time.Duration) {
	w.hungTo = time.Now().Add(d)
	w.slowest = time.Second // as late answers make it seem
}

// join has so many nodes join the fleet, not all at once.
func (w *limits) join(nodes int) {
	for range nodes {
		w.start(fmt.Sprint("node ", len(w.nodes)))
		w.run(time.Duration(w.Rand().Int64N(int64(500 * time.Millisecond / time.Duration(nodes)))))
	}
}

// start begins a node, in place of one of that name.
func (w *limits) start(id string) *limited {
	n := &limited{world: w, id: id, number: w.started, machine: boottimetest.NewMachine(), handles: map[*client]*handles{}}
	w.started++
	n.Limiter = limiter.New(limiter.Options{Redis: world.NewRedisClient(n.carry), NodeID: id, FailureMode: w.mode, Clock: n.machine.Clock})
	i := slices.IndexFunc(w.nodes, func(other *limited) bool { return other.id == id })
	if i < 0 {
		i = len(w.nodes)
		w.nodes = append(w.nodes, nil)
	}
	w.nodes[i] = n
	w.settle()
	return n
}

// kill ends a node at once.
func (n *limited) kill() {
	n.dead = true
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	go func() { _ = n.Close(ended) }()
	n.world.settle()
}

// of returns what the node limits a client by. A new node knows the policy of now.
func (n *limited) of(c *client) *handles {
	h := n.handles[c]
	if h == nil {
		h = &handles{policy: c.policy, tokens: c.tokens}
		n.handles[c] = h
		n.apply(c)
	}
	return h
}

// apply has a node use the limits that it knows.
func (n *limited) apply(c *client) {
	h := n.handles[c]
	if c.policy.Burst > 0 {
		h.key = n.Bucket(limiter.KeyBucket("w", c.name), h.policy)
	}
	if c.workspace.Burst > 0 {
		h.workspace = n.Bucket(limiter.WorkspaceBucket("w"), c.workspace)
	}
	if h.tokens > 0 {
		h.quota = n.Quota("w", "month", h.tokens, c.ends)
	}
}

// run lets time pass.
func (w *limits) run(d time.Duration) { w.Elapse(d, w.settle) }

// settle lets goroutines go on until all wait, and sends and judges what came of that.
func (w *limits) settle() {
	for {
		synctest.Wait()
		w.mu.Lock()
		answered := w.answered
		w.answered = nil
		w.mu.Unlock()
		sent := messagesOf(w.Take())
		if len(sent)+len(answered) == 0 {
			return
		}
		for _, m := range sent {
			w.transmit(m)
		}
		w.judgeAll(answered)
	}
}

// messagesOf has what a node sent at one moment travel together. Heartbeats travel by themselves.
func messagesOf(sent []*world.Call) (all []*message) {
	for _, c := range sent {
		p := c.Of.(*pipe)
		if n := len(all); n == 0 || all[n-1].node != p.node || all[n-1].beats() != p.calls[0].beats {
			all = append(all, &message{node: p.node, sent: time.Now()})
		}
		m := all[len(all)-1]
		m.pipes, m.Calls = append(m.pipes, p), append(m.Calls, c)
	}
	return all
}

func (m *message) beats() bool { return m.pipes[0].calls[0].beats }

// each is all calls of the message.
func (m *message) each(do func(c *scriptCall)) {
	for _, p := range m.pipes {
		for _, c := range p.calls {
			do(c)
		}
	}
}

// answers is all calls whose answer is under way; others have been granted nothing.
func (w *limits) answers(do func(c *scriptCall)) {
	for _, m := range w.UnderWay() {
		for _, c := range m.Calls {
			for _, of := range c.Of.(*pipe).calls {
				do(of)
			}
		}
	}
}

// transmit brings a message to Redis.
func (w *limits) transmit(m *message) {
	n := m.node
	late := time.Duration(0)
	if m.beats() {
		late = n.lateBeat
	} else {
		m.each(func(*scriptCall) { w.counts["calls"]++ })
		if n.stopSent > 0 {
			w.freeze(n, n.stopSent)
			n.stopSent = 0
		}
	}
	lost := n.cut || w.loses()
	m.There = w.delay() + late
	if late > 0 {
		n.cut, n.lateBeat = true, 0
	}
	if w.Traces() {
		w.Tracef("%s sends %s, which is lost: %t", n, m, lost)
	}
	m.Execute, m.Answered = func() time.Duration { return w.arrive(m) }, func() {
		if m.beats() && m.pipes[0].Commands[0][5] == "present" && time.Since(m.sent) < 250*time.Millisecond { // later, its node has given up
			n.beats++
		}
	}
	if !lost {
		w.Travel(&m.Message)
	}
}

// arrive has Redis execute a message, and send the answer.
func (w *limits) arrive(m *message) (again time.Duration) {
	if hung := time.Until(w.hungTo); hung > 0 {
		return hung
	}
	n := m.node
	for _, p := range m.pipes {
		w.redis.Execute(p.RedisCall)
		for i, c := range p.calls {
			c.answered(p.Replies[i])
		}
	}
	m.each(func(c *scriptCall) {
		switch {
		case c.numbers == nil: // Redis does not have the script yet
		case c.bucket != nil:
			w.judgeBucket(c)
		case !c.beats:
			w.judgeQuotaCall(n, c)
		}
	})
	lost := n.cut || n.deaf || w.loses()
	m.Back = w.delay()
	if lost {
		m.Fate = world.IsLost
	}
	if w.Traces() {
		w.Tracef("Redis answers %s to %s, which is lost: %t", m, n, lost)
	}
	return 0
}

// freeze stops a node for a while. Its clock goes on, and so do its timers.
func (w *limits) freeze(n *limited, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n.frozenTo = time.Now().Add(d)
}

// awake waits until a node is not frozen.
func (n *limited) awake() (waited bool) {
	for {
		n.world.mu.Lock()
		left := time.Until(n.frozenTo)
		n.world.mu.Unlock()
		if left <= 0 {
			return waited
		}
		waited = true
		time.Sleep(left)
	}
}

// request sends a request to a node.
func (w *limits) request(n *limited, c *client) *request {
	r := &request{number: w.counts["requests"], node: n, client: c, arrived: time.Now(), ideal: c.exact.take(w.now())}
	w.counts["requests"]++
	h := n.of(c)
	w.arrives(r)
	go func() {
		if n.awake() {
			time.Sleep(time.Microsecond + time.Duration(r.number)) // the answers that have come meanwhile are read before, and requests in their order
		}
		r.decision = n.Take(time.Now(), h.key, h.workspace, h.quota)
		r.ended = time.Now()
		w.mu.Lock()
		w.answered = append(w.answered, r)
		w.mu.Unlock()
		w.Wake()
	}()
	w.settle()
	return r
}

// ask sends a request to any node, and waits for the decision.
func (w *limits) ask(c *client) limiter.Decision {
	r := w.request(w.anyNode(), c)
	for !r.done() {
		w.run(time.Millisecond)
	}
	return r.decision
}

// anyNode returns one that gets requests.
func (w *limits) anyNode() *limited {
	for {
		if n := w.nodes[w.Rand().IntN(len(w.nodes))]; !n.idle {
			return n
		}
	}
}

func (n *limited) String() string { return fmt.Sprintf("%s (%d)", n.id, n.number) }

func (m *message) String() string {
	var of []string
	for _, p := range m.pipes {
		for i, c := range p.calls {
			var text string
			switch {
			case c.bucket != nil:
				text = fmt.Sprintf("%s %+v", c.key, *c.bucket)
			case c.beats:
				text = p.Commands[i][4] + " " + p.Commands[i][5]
			default:
				text = fmt.Sprintf("%s, call %s, %d spent", c.key, p.Commands[i][6], c.floor)
			}
			of = append(of, fmt.Sprint(text, " -> ", c.numbers))
		}
	}
	slices.Sort(of)
	return strings.Join(of, ", ")
}

var errDead = errors.New("the node is dead")

// carry sends a message to the world, and waits for the answer. Either may be lost. A node that is frozen sends and reads when it goes on.
func (n *limited) carry(ctx context.Context, c *world.RedisCall) error {
	n.resume(c)
	switch {
	case n.dead:
		return errDead
	case ctx.Err() != nil: // nothing is sent after the deadline
		return ctx.Err()
	}
	sent := &world.RedisCall{Commands: c.Commands} // it may be executed after the node has given up
	p := &pipe{RedisCall: sent, node: n}
	for _, command := range c.Commands {
		p.calls = append(p.calls, scriptCallOf(command))
	}
	err := n.world.Send(ctx, &world.Call{Name: fmt.Sprintf("%6d %s", n.number, p.calls[0].key), Of: p})
	if err == nil {
		c.Replies = sent.Replies
	}
	n.resume(c)
	return err
}

// resume waits until a node is not frozen. Then heartbeats go on first.
func (n *limited) resume(c *world.RedisCall) {
	if n.awake() {
		time.Sleep(time.Duration(len(c.Commands[0][3])))
	}
}

// scriptCallOf reads a command: EVALSHA, a digest, 1, the key, the arguments. Scripts are told apart by how many these are.
func scriptCallOf(command []string) *scriptCall {
	c := &scriptCall{key: command[3]}
	switch len(command) - 4 {
	case 1:
		call, _ := world.UnpackBucketCall([]byte(command[4]))
		c.bucket = &call
	case 4:
		c.beats = true
	default:
		c.number, _ = strconv.ParseInt(command[6], 10, 64)
		c.floor, _ = strconv.ParseInt(command[7], 10, 64)
	}
	return c
}

// answered notes what Redis answers.
func (c *scriptCall) answered(is any) {
	c.numbers, _ = is.([]any) // else it does not have the script yet
	switch {
	case c.numbers == nil || c.beats:
	case c.bucket != nil:
		c.granted, c.leased = c.numbers[0].(int64), c.numbers[1].(int64)
	default:
		c.taken = c.numbers[0].(int64)
	}
}
