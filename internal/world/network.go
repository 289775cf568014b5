package world

import (
	"container/heap"
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// Network brings what nodes send to servers, and the answers back. Goroutines of nodes Send; the world Takes what they have sent once all of
// them wait, decides about each message, and has it Travel. It arrives, and its answer does, when the world has time Elapse: one by one, each at its moment,
// however they were sent.
type Network struct {
	Near time.Duration // how long each message is under way; 0 = as is drawn

	dice     *Dice
	events   agenda
	ordered  int           // events, ever
	woken    chan struct{} // something has been sent or answered
	underWay []*Message

	mu   sync.Mutex // guards sent
	sent []*Call    // since the last Take
}

// Call is what a goroutine sends and waits for.
type Call struct {
	Name    string           // what is sent at one moment is taken in the order of names
	Of      any              // its sender's
	Decide  func(m *Message) // decides about a message that is this call alone
	message *Message
	ctx     context.Context // of who waits for its answer; nil = nobody does
	over    chan struct{}
}

// Message is what travels at once: a call, or several of one moment.
type Message struct {
	Calls       []*Call
	There, Back time.Duration                // how long it is under way, and then its answer
	Fate        Fate                         // may be changed until it is executed
	Execute     func() (again time.Duration) // has a server execute it; again: not yet, but then
	Answered    func()                       // called when the answer arrives; nil = nobody wants to know
	Began       uint64                       // what the standby had replayed when it was sent
	next        *event
	err         error
}

// Fate is how far a message comes.
type Fate uint8

const (
	Arrives   Fate = iota
	CutBefore      // its connection ends before it is executed
	CutAfter       // its connection ends after it is executed
	IsLost         // there is no answer, and its connection stays open
)

// Road is how calls to servers of a kind fare. Times are ticks.
type Road struct {
	there, back, late int
	slow              Kind
	slowOneIn         int
	cuts              Kind
	cutsOneIn         int
}

// The roads.
var (
	ToPostgres = Road{4, 8, 80, Slow, 8, Cuts, 20}
	toRedis    = Road{2, 2, 60, redisIsSlow, 60, redisCuts, 200}
)

// event is what happens later.
type event struct {
	at    time.Time
	order int
	do    func()
}

// agenda is a heap of them.
type agenda []*event

func (e agenda) Len() int { return len(e) }
func (e agenda) Less(i, j int) bool {
	return e[i].at.Before(e[j].at) || e[i].at.Equal(e[j].at) && e[i].order < e[j].order
}
func (e agenda) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *agenda) Push(x any)   { *e = append(*e, x.(*event)) }
func (e *agenda) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// NewNetwork makes one of a run.
func NewNetwork(d *Dice) *Network { return &Network{dice: d, woken: make(chan struct{}, 1)} }

// Send sends a call, and waits for its answer, at most until ctx ends. After an error it may have been executed, or be so later.
func (n *Network) Send(ctx context.Context, c *Call) error {
	c.ctx = ctx
	n.Post(c)
	select {
	case <-c.over:
		return c.message.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Post sends a call whose answer nobody waits for.
func (n *Network) Post(c *Call) {
	c.over = make(chan struct{})
	n.mu.Lock()
	n.sent = append(n.sent, c)
	n.mu.Unlock()
	n.Wake()
}

// Take returns what was sent since the last time, without what somebody gave up, or whose node was killed, at the moment when it was sent.
func (n *Network) Take() (sent []*Call) {
	n.mu.Lock()
	sent, n.sent = n.sent, nil
	n.mu.Unlock()
	sent = slices.DeleteFunc(sent, func(c *Call) bool { return c.ctx != nil && c.ctx.Err() != nil })
	slices.SortFunc(sent, func(a, b *Call) int { return strings.Compare(a.Name, b.Name) })
	return sent
}

// Deliver decides about what was sent since the last time, each call by itself.
func (n *Network) Deliver() {
	for _, c := range n.Take() {
		m := &Message{Calls: []*Call{c}}
		c.Decide(m)
		n.Travel(m)
	}
}

// Draw draws the fate of a message. One that is late on its way there is overtaken by what is sent later, on another connection. No server gets
// a message twice: what is cut is repeated by its sender alone, and may have been executed.
func (n *Network) Draw(m *Message, on *Road) {
	d := n.dice
	if n.Near > 0 {
		m.There, m.Back = n.Near, n.Near
		return
	}
	if d.Chance(2) {
		m.There = d.In(on.there)
	}
	m.Back = d.In(on.back)
	switch {
	case !d.Happens(on.slow, on.slowOneIn):
	case d.Chance(2):
		m.There += d.In(on.late)
	default:
		m.Back += d.In(on.late)
	}
	if d.Happens(on.cuts, on.cutsOneIn) {
		m.Fate = CutBefore + Fate(d.r.IntN(2))
	}
}

// Travel has a message arrive.
func (n *Network) Travel(m *Message) {
	n.underWay = append(n.underWay, m)
	m.next = n.After(m.There, func() { n.arrive(m) })
}

// Retry executes a message now that waits to be executed.
func (n *Network) Retry(m *Message) {
	m.next.do = nil
	n.arrive(m)
}

func (n *Network) arrive(m *Message) {
	if m.Fate != CutBefore {
		again := m.Execute()
		if again > 0 {
			m.next = n.After(again, func() { n.arrive(m) })
			return
		}
	}
	switch m.Fate {
	case IsLost:
		n.end(m)
	case Arrives:
		m.next = n.After(m.Back, func() { n.answer(m, nil) })
	default:
		m.next = n.After(m.Back, func() { n.answer(m, io.EOF) })
	}
}

func (n *Network) answer(m *Message, err error) {
	n.end(m)
	m.err = err
	if m.Answered != nil {
		m.Answered()
	}
	for _, c := range m.Calls {
		c.message = m
		close(c.over)
	}
}

func (n *Network) end(m *Message) {
	n.underWay = slices.DeleteFunc(n.underWay, func(other *Message) bool { return other == m })
}

// Cut ends the connection of a message, which may have been executed.
func (n *Network) Cut(m *Message) {
	m.next.do, m.Fate = nil, CutBefore
	m.next = n.After(0, func() { n.answer(m, io.EOF) })
}

// UnderWay are the messages whose answer may arrive.
func (n *Network) UnderWay() []*Message { return n.underWay }

// After has something happen then.
func (n *Network) After(d time.Duration, do func()) *event {
	n.ordered++
	e := &event{n.dice.now().Add(d), n.ordered, do}
	heap.Push(&n.events, e)
	return e
}

// Clear forgets all that was to happen.
func (n *Network) Clear() { n.events = nil }

// Wake has Elapse settle.
func (n *Network) Wake() {
	select {
	case n.woken <- struct{}{}:
	default:
	}
}

// Elapse lets time pass. settle lets goroutines go on until all wait.
func (n *Network) Elapse(d time.Duration, settle func()) {
	until := n.dice.now().Add(d)
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		settle()
		e := n.due(until)
		if e != nil {
			e.do()
			continue
		}
		next := until
		if len(n.events) > 0 && n.events[0].at.Before(until) {
			next = n.events[0].at
		}
		left := next.Sub(n.dice.now())
		if left <= 0 {
			return
		}
		timer.Reset(left)
		select {
		case <-timer.C:
		case <-n.woken:
		}
	}
}

// due returns the first event whose moment has come, of those until then; nil = there is none.
func (n *Network) due(until time.Time) *event {
	for len(n.events) > 0 && !n.events[0].at.After(until) && n.dice.reached(n.events[0].at) {
		e := heap.Pop(&n.events).(*event)
		if e.do != nil {
			return e
		}
	}
	return nil
}
