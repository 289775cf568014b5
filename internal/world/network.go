package world

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Access is a node's way to Redis: a real client, whose calls the world executes and answers when it likes, on the server that
// the node has found. A connection stays with its server, and ends with it; the pool of the client goes to the new one.
type Access struct {
	Client *redis.Client

	net    *network
	name   string
	server *Redis
	conns  map[int]*Redis // nil = it has ended
	deafTo time.Time      // until then it gets nothing of the log
	atOnce bool           // its calls are answered when they are made
}

// sent is a call on its way.
type sent struct {
	*RedisCall
	access         *Access
	server         *Redis
	at, runAt, end time.Time
	ran, waits     bool
	lost           bool // it gets no answer
	err            error
	answered       chan struct{}
}

// network brings the calls of nodes to Redis. The goroutines of nodes note them; the world, while all nodes wait, decides about them.
type network struct {
	dice     *Dice
	changes  *changes
	accesses []*Access
	hangsTo  time.Time // until then no server executes anything

	// A page whose remaining life was counted before a sleep, and which is stored after it, is evicted at once: only the wall clock
	// of its reader could tell its age. They are stored before this moment.
	awake time.Time

	mu       sync.Mutex // guards asked
	asked    []*sent    // since the last Arrange
	underWay []*sent
}

// Redis makes a way to Redis for a node of that name. Only one node may have it at a time.
func (n *network) Redis(name string) *Access {
	a := &Access{net: n, name: name, server: n.changes.server, conns: map[int]*Redis{}}
	a.Client = NewRedisClient(a.carry)
	n.accesses = append(n.accesses, a)
	return a
}

// AtOnce has what f asks of Redis answered at once, for example while a node starts. f must not return before its calls have.
func (a *Access) AtOnce(f func()) {
	a.atOnce = true
	f()
	a.atOnce = false
}

// Deafen has the node get nothing of the log for so long.
func (a *Access) Deafen(d time.Duration) { a.deafTo = a.net.dice.now().Add(d) }

// Close ends what the node has under way.
func (a *Access) Close() {
	a.lead(nil)
	a.net.accesses = slices.DeleteFunc(a.net.accesses, func(other *Access) bool { return other == a })
}

func (a *Access) carry(ctx context.Context, c *RedisCall) error {
	if a.atOnce {
		a.server.Execute(c)
		return nil
	}
	s := &sent{RedisCall: c, access: a, answered: make(chan struct{})}
	a.net.mu.Lock()
	a.net.asked = append(a.net.asked, s)
	a.net.mu.Unlock()
	select {
	case <-s.answered:
		return s.err
	case <-ctx.Done(): // it may still be executed
		return ctx.Err()
	}
}

// lead has the node find another server, or none. All its connections end.
func (a *Access) lead(to *Redis) {
	a.server = to
	for conn := range a.conns {
		a.conns[conn] = nil
	}
	for _, s := range a.net.underWay {
		if s.access == a {
			s.lose(a.net.dice.now())
		}
	}
}

// lose ends the connection of a call, which may have been executed.
func (s *sent) lose(at time.Time) { s.ran, s.waits, s.err, s.end = true, false, io.EOF, at }

// Arrange decides about the calls that nodes have made since the last time.
func (n *network) Arrange() {
	n.mu.Lock()
	asked := n.asked
	n.asked = nil
	n.mu.Unlock()
	slices.SortFunc(asked, func(a, b *sent) int {
		return cmp.Or(strings.Compare(a.access.name, b.access.name), strings.Compare(a.String(), b.String()))
	})
	for _, s := range asked {
		n.arrange(s)
		n.underWay = append(n.underWay, s)
	}
}

func (n *network) arrange(s *sent) {
	s.at, s.runAt, s.server = n.dice.now(), n.dice.now(), s.access.server
	if s.Conn > 0 {
		of, known := s.access.conns[s.Conn]
		if !known {
			of = s.server
			s.access.conns[s.Conn] = of
		}
		s.server = of
	}
	if s.server == nil {
		s.lose(s.at)
		return
	}
	if n.dice.chance(2) { // else Redis is near
		s.runAt = n.dice.in(2)
	}
	s.end = s.runAt.Add(n.dice.In(2))
	switch {
	case s.reads() && !n.dice.reached(s.access.deafTo) && !n.dice.calm:
		s.end = s.access.deafTo
	case s.reads() && n.dice.happens(nodePauses, 100):
		s.end = s.end.Add(n.dice.In(boundTicks))
		n.dice.trace("the reader of %s pauses", s.access.name)
	case n.dice.happens(redisIsSlow, 60):
		s.end = s.end.Add(n.dice.In(60))
	case n.dice.happens(redisCuts, 200):
		s.lost = true
		if n.dice.chance(2) {
			s.lose(s.end)
		}
	}
}

// reads reports whether the call reads the log.
func (s *sent) reads() bool { return s.Commands[0][0] == "xread" }

// stores reports whether the call stores a page.
func (s *sent) stores() bool {
	return s.Commands[0][0] == "set" && strings.Contains(s.Commands[0][1], ":page:")
}

// Answer executes the calls whose time has come, and answers one of them. It reports whether it did.
func (n *network) Answer() bool {
	for i, s := range n.underWay {
		n.run(s)
		if !s.ran || s.waits || !n.dice.reached(s.end) {
			continue
		}
		n.underWay = slices.Delete(n.underWay, i, i+1)
		if s.lost {
			s.err = io.EOF
		}
		close(s.answered)
		return true
	}
	return false
}

func (n *network) run(s *sent) {
	if s.ran && !s.waits || !n.dice.reached(s.runAt) || !n.dice.reached(n.hangsTo) {
		return
	}
	blocks := s.server.Execute(s.RedisCall)
	if s.stores() && n.dice.now().Before(n.awake) {
		s.server.Execute(&RedisCall{Commands: [][]string{{"del", s.Commands[0][1]}}})
	}
	s.ran, s.waits = true, blocks > 0 && n.dice.now().Sub(s.at) < blocks
	if s.reads() && !s.waits {
		n.damage(s)
	}
	if n.dice.Traces() && !s.waits && !s.reads() {
		n.dice.trace("%s asks %s: %s", s.access.name, s.server.Name, s.inShort())
	}
}

// sleep is what becomes of Redis while all machines sleep: it goes on, and forgets pages. The age of one that was stored late is known by
// wall clocks alone, and those that nodes compare do not count simulated sleeps.
func (n *network) sleep() {
	n.hangsTo = time.Time{}
	for _, s := range n.underWay {
		s.runAt = n.dice.now()
		n.run(s)
	}
	n.changes.server.forget("listedge:page:")
	n.changes.mirror.forget("listedge:page:")
	n.changes.dump = nil
}

// inShort is the call and its answer without long values.
func (s *sent) inShort() string {
	var all []string
	for i, args := range s.Commands {
		is := s.Replies[i]
		if text, ok := is.(string); ok {
			is = fmt.Sprint(len(text), " bytes")
		}
		all = append(all, fmt.Sprintf("%.300q: %v", args[:min(2, len(args))], is))
	}
	return strings.Join(all, ", ")
}

// damage makes entries of an answer such as are damaged, or of another version.
func (n *network) damage(s *sent) {
	streams, _ := s.Replies[0].([]any)
	if len(streams) == 0 {
		return
	}
	for _, e := range streams[0].([]any)[1].([]any) {
		if n.dice.happens(entryIsDamaged, 500) {
			e.([]any)[1].([]any)[1] = "damaged"
			n.dice.trace("entry %s is damaged for %s", e.([]any)[0], s.access.name)
		}
	}
}

// move lets nodes lose their connections, and find another server, which may be the mirror. Or all of Redis hangs for a while.
func (n *network) move() {
	if n.dice.happens(Hangs, 2000) {
		n.hangsTo = n.dice.in(2 * boundTicks)
		n.dice.trace("Redis hangs for %s", n.hangsTo.Sub(n.dice.now()))
	}
	for _, a := range n.accesses {
		if n.dice.happens(sessionEnds, 200) || a.server != n.changes.server && n.dice.chance(15) {
			to := n.changes.server
			if n.dice.happens(readsMirror, 5) {
				to = n.changes.mirror
			}
			a.lead(to)
			n.dice.trace("%s reads from %s", a.name, to.Name)
		}
	}
}
