package world

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Access is a node's way to Redis: a real client, whose calls the world executes and answers when it likes, on the server that
// the node has found. A connection stays with its server, and ends with it; the pool of the client goes to the new one.
type Access struct {
	Client *redis.Client

	ways     *ways
	name     string
	server   *Redis
	conns    map[int]*Redis // nil = it has ended
	deafTo   time.Time      // until then it gets nothing of the log
	pausedTo time.Time      // until then it gets nothing
	atOnce   bool           // its calls are answered when they are made
}

// sent is a call on its way.
type sent struct {
	*RedisCall
	access *Access
	server *Redis
	at     time.Time
	waits  bool // for an entry
}

// ways are those of all nodes.
type ways struct {
	*Network
	changes  *changes
	accesses []*Access
	hangsTo  time.Time // until then no server executes anything

	// A page whose remaining life was counted before a sleep, and which is stored after it, is evicted at once: only the wall clock
	// of its reader could tell its age. They are stored before this moment.
	awake time.Time
}

// Redis makes a way to Redis for a node of that name. Only one node may have it at a time.
func (w *ways) Redis(name string) *Access {
	a := &Access{ways: w, name: name, server: w.changes.server, conns: map[int]*Redis{}}
	a.Client = NewRedisClient(a.carry)
	w.accesses = append(w.accesses, a)
	return a
}

// AtOnce has what f asks of Redis answered at once, for example while a node starts. f must not return before its calls have.
func (a *Access) AtOnce(f func()) {
	a.atOnce = true
	f()
	a.atOnce = false
}

// Deafen has the node get nothing of the log for so long.
func (a *Access) Deafen(d time.Duration) { a.deafTo = a.ways.dice.now().Add(d) }

// Close ends what the node has under way.
func (a *Access) Close() {
	a.lead(nil)
	a.ways.accesses = slices.DeleteFunc(a.ways.accesses, func(other *Access) bool { return other == a })
}

func (a *Access) carry(ctx context.Context, c *RedisCall) error {
	if a.atOnce {
		a.server.Execute(c)
		return nil
	}
	s := &sent{RedisCall: c, access: a}
	return a.ways.Send(ctx, &Call{Name: a.name + " " + c.String(), Of: s, Decide: s.decide})
}

// lead has the node find another server, or none. All its connections end.
func (a *Access) lead(to *Redis) {
	a.server = to
	for conn := range a.conns {
		a.conns[conn] = nil
	}
	a.ways.each(func(m *Message, s *sent) {
		if s.access == a {
			a.ways.Cut(m)
		}
	})
}

// each is all calls that are under way to Redis.
func (w *ways) each(do func(m *Message, s *sent)) {
	for _, m := range slices.Clone(w.underWay) {
		s, ok := m.Calls[0].Of.(*sent)
		if ok {
			do(m, s)
		}
	}
}

// decide decides about a call.
func (s *sent) decide(m *Message) {
	a, d := s.access, s.access.ways.dice
	s.at, s.server = d.now(), a.server
	if s.Conn > 0 {
		of, known := a.conns[s.Conn]
		if !known {
			of = s.server
			a.conns[s.Conn] = of
		}
		s.server = of
	}
	m.Execute = func() time.Duration { return s.execute(m) }
	if s.server == nil {
		m.Fate = CutBefore
		return
	}
	a.ways.Draw(m, &toRedis)
	if s.reads() && d.Happens(nodePauses, 100) {
		m.Back += d.In(boundTicks)
		d.Tracef("the reader of %s pauses", a.name)
	}
}

// reads reports whether the call reads the log.
func (s *sent) reads() bool { return s.Commands[0][0] == "xread" }

// stores reports whether the call stores a page.
func (s *sent) stores() bool {
	return s.Commands[0][0] == "set" && strings.Contains(s.Commands[0][1], ":page:")
}

// execute executes a call, unless it must wait.
func (s *sent) execute(m *Message) (again time.Duration) {
	w, d := s.access.ways, s.access.ways.dice
	if !d.reached(w.hangsTo) {
		return w.hangsTo.Sub(d.now())
	}
	blocks := s.server.Execute(s.RedisCall) - d.now().Sub(s.at)
	s.waits = blocks > 0 && s.reads()
	if s.waits {
		return blocks
	}
	if s.stores() && d.now().Before(w.awake) {
		s.server.Execute(&RedisCall{Commands: [][]string{{"del", s.Commands[0][1]}}})
	}
	m.Back = max(m.Back, s.access.pausedTo.Sub(d.now()))
	if s.reads() {
		w.damage(s)
		if !d.reached(s.access.deafTo) && !d.calm {
			m.Back = s.access.deafTo.Sub(d.now())
		}
	} else if d.Traces() {
		d.Tracef("%s asks %s: %s", s.access.name, s.server.Name, s.inShort())
	}
	return 0
}

// wake executes reads that wait: there may be entries now.
func (w *ways) wake() {
	w.each(func(m *Message, s *sent) {
		if s.waits && m.Fate != CutBefore {
			w.Retry(m)
		}
	})
}

// sleep is what becomes of Redis while all machines sleep: it goes on, and forgets pages. The age of one that was stored late is known by
// wall clocks alone, and those that nodes compare do not count simulated sleeps.
func (w *ways) sleep() {
	w.hangsTo = time.Time{}
	w.each(func(m *Message, s *sent) {
		if s.Replies == nil {
			w.Retry(m)
		}
	})
	w.changes.server.forget("listedge:page:")
	w.changes.mirror.forget("listedge:page:")
	w.changes.dump = nil
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
func (w *ways) damage(s *sent) {
	streams, _ := s.Replies[0].([]any)
	if len(streams) == 0 {
		return
	}
	for _, e := range streams[0].([]any)[1].([]any) {
		if w.dice.Happens(entryIsDamaged, 500) {
			e.([]any)[1].([]any)[1] = "damaged"
			w.dice.Tracef("entry %s is damaged for %s", e.([]any)[0], s.access.name)
		}
	}
}

// move lets nodes lose their connections, and find another server, which may be the mirror. Or all of Redis hangs for a while.
func (w *ways) move() {
	if w.dice.Happens(Hangs, 2000) {
		w.hangsTo = w.dice.in(2 * boundTicks)
		w.dice.Tracef("Redis hangs for %s", w.hangsTo.Sub(w.dice.now()))
	}
	for _, a := range w.accesses {
		if w.dice.Happens(sessionEnds, 200) || a.server != w.changes.server && w.dice.Chance(15) {
			to := w.changes.server
			if w.dice.Happens(readsMirror, 5) {
				to = w.changes.mirror
			}
			a.lead(to)
			w.dice.Tracef("%s reads from %s", a.name, to.Name)
		}
	}
}
