package world_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
	"unique"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"listedge/edge"
	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/page"
	"listedge/internal/world"
	"listedge/limiter"
	"listedge/metrics"
	"listedge/origin/apikey"
	"listedge/origin/usage"
)

// In some worlds nodes have doors: the real HTTP server of each, and clients that have keys and connections. What a client gets of
// a page is judged as in other worlds, and the answers by door_judge_test.go.

// doors are what clients of nodes with doors have.
type doors struct {
	visitors []*visitor
	tags     map[string]*shown // the page of each ETag that a client has seen
}

// door is the HTTP side of a node.
type door struct {
	*listener
	run    *run
	node   *node
	server *edge.Server
	limits *limiter.Limiter
	usage  *usage.Recorder

	conns []net.Conn // all that came, as the server has them

	drains    time.Time     // since when each answer closes its connection; zero = not yet
	stopsAt   time.Time     // until when it drains
	stopping  bool          // it shuts down
	stopped   chan struct{} // closed when it has shut down, with the next two
	lost      error         // why it did not answer all
	unwritten error         // why not all usage is written
	killed    bool

	buckets map[string]*bucket
	tallies map[uuid.UUID]*tally
	written map[uuid.UUID]usage.Counts
	number  int64 // of the last batch that was written
}

// doorsEvery says which worlds have doors: a seed in so many, and such ones of each list.
const doorsEvery = 5

// workersEnd is how long a goroutine of a fasthttp server outlives it.
const workersEnd = 10 * time.Second

// startDate starts what fasthttp has once in a process, outside of all bubbles.
func startDate() { (&fasthttp.ResponseHeader{}).AppendBytes(nil) }

// newDoor makes the door of a node; nil = nodes of this world have none.
func (w *run) newDoor(n *node) *door {
	if !w.hasDoors {
		return nil
	}
	d := &door{listener: newListener(), run: w, node: n, stopped: make(chan struct{}), buckets: map[string]*bucket{},
		tallies: map[uuid.UUID]*tally{}, written: map[uuid.UUID]usage.Counts{}}
	d.limits, d.usage = limiter.New(limiter.Options{Clock: n.machine.Clock}), usage.Start(d.write)
	d.server = edge.New(edge.Options{Lists: &list.Set{Lists: []*list.List{w.List}}, Cache: n.pages.Cache, Limiter: d.limits, Lookup: d.lookUp,
		Grace: keyGrace, Metrics: metrics.New("world", "").Edge, Logger: slog.New(slog.DiscardHandler), Usage: d.usage, Clock: n.machine.Clock, NoDocs: true})
	w.running.Go(func() { _ = d.server.Serve(d) })
	return d
}

// listeners are what reads changes.
func (d *door) listeners() []changefeed.Listener {
	if d == nil {
		return nil
	}
	return []changefeed.Listener{d.server.Keys}
}

// connect opens a connection; nil = the door is closed.
func (d *door) connect(from *visitor) net.Conn {
	ours, theirs := net.Pipe()
	if !d.hand(end{theirs, from.number}) {
		return nil
	}
	d.conns = append(d.conns, theirs)
	return ours
}

// listener is a net.Listener in memory.
type listener struct {
	came    chan net.Conn
	closed  chan struct{}
	closing sync.Once
}

func newListener() *listener {
	return &listener{came: make(chan net.Conn), closed: make(chan struct{})}
}

// hand gives the listener the server's end of a connection. It reports whether it listens.
func (l *listener) hand(c net.Conn) bool {
	select {
	case <-l.closed:
		return false
	case l.came <- c:
		return true
	}
}

// Accept, Close and Addr implement net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.came:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.closing.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Addr() net.Addr { return &net.TCPAddr{} }

// end is the server's end of a connection, from an address of the client's own.
type end struct {
	net.Conn
	client int
}

// RemoteAddr is the client's address.
func (e end) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(10, 0, 0, byte(e.client)), Port: 1}
}

// stepDoor is what happens to a node's door in a step.
func (w *run) stepDoor(n *node) {
	d := n.door
	switch {
	case d == nil:
	case d.stopping:
		select {
		case <-d.stopped:
			w.judgeStop(d)
			w.start(n.number)
		default:
		}
	case !d.drains.IsZero():
		if !w.Now().Before(d.stopsAt) {
			d.stopping = true
			w.Tracef("%s shuts down", n)
			w.running.Go(d.shutDown)
		}
	case w.Happens(world.Drains, 1500):
		w.counts["drains"]++
		w.Tracef("%s drains", n)
		d.drains, d.stopsAt = w.Now(), w.Now().Add(w.In(100))
		d.server.Drain()
	}
}

// isLeaving reports whether the node drains, and another one will take its place.
func (d *door) isLeaving() bool { return d != nil && !d.drains.IsZero() }

// shutDown ends the door as a node does after its drain.
func (d *door) shutDown() {
	ctx, cancel := context.WithTimeout(d.node.lives, 10*time.Second)
	defer cancel()
	looksAgain := time.After(100 * time.Millisecond)
	d.lost = d.server.Shutdown(ctx)
	<-looksAgain // fasthttp looks for open connections at once, or so much later: which of the two must not matter
	d.unwritten = d.usage.Close(ctx)
	_ = d.limits.Close(ctx)
	close(d.stopped)
}

// kill ends the door at once.
func (d *door) kill(ended context.Context) {
	if d == nil {
		return
	}
	d.killed = true
	_ = d.Close()
	for _, c := range d.conns {
		c.Close()
	}
	if d.stopping {
		<-d.stopped
		return
	}
	_ = d.server.Shutdown(ended)
	_ = d.usage.Close(ended)
	_ = d.limits.Close(ended)
}

// lookUp implements apikey.Lookup.
func (d *door) lookUp(ctx context.Context, hashes []apikey.Hash, run string) (found map[apikey.Hash]apikey.Key, err error) {
	w := d.run
	late := w.await(ctx, fmt.Sprintf("%s looks up keys", d.node), func(*world.Message) {
		if run != "" && run != w.Run {
			err = page.ErrWrongServer
			return
		}
		found = map[apikey.Hash]apikey.Key{}
		for _, c := range w.visitors {
			hash, _ := apikey.HashOf([]byte(c.text))
			if !c.unknown && slices.Contains(hashes, hash) {
				c.key.StartedAt = unique.Make(w.Run)
				found[hash] = c.key
			}
		}
	})
	if late != nil {
		return nil, fmt.Errorf("%w: %w", page.ErrUnavailable, late)
	}
	return found, err
}

// write implements usage.Writer. A batch whose answer is lost may have been written.
func (d *door) write(ctx context.Context, _ uuid.UUID, number int64, rows []*usage.Row) (err error) {
	err = d.run.await(ctx, fmt.Sprintf("%s writes usage", d.node), func(*world.Message) {
		if number > d.number {
			d.number = number
			for _, row := range rows {
				sum := d.written[row.ID]
				sum.Add(row.Counts)
				d.written[row.ID] = sum
			}
		}
	})
	if err != nil {
		return fmt.Errorf("%w: %w", page.ErrUnavailable, err)
	}
	return nil
}

// visitor is a client that has a key, and a connection that it keeps.
type visitor struct {
	number int
	account
	busy bool
	node *node // that the connection leads to
	conn net.Conn
	in   *bufio.Reader
	q    page.Query // of the latest page that it got
	tag  string     // the ETag of that; empty = it has none
}

// account is a key.
type account struct {
	text    string // as it is sent
	key     apikey.Key
	unknown bool
	status  int // of each answer; 0 = pages
}

// texts are keys. Which they are does not matter.
var texts = func() (all [9]string) {
	for i := range all {
		all[i] = apikey.Generate()
	}
	all[8] = "lk_" + strings.Repeat("A", len(all[0])-3)
	return all
}()

// large is a limit that no client reaches.
const large = 1000

// newVisitors makes clients with keys of two workspaces, each of a tenant of its own where the list has tenants: large and small
// limits, and keys that get no page.
func (w *run) newVisitors() {
	w.tags = map[string]*shown{}
	for i, text := range texts {
		k := apikey.Key{ID: uuid.UUID{15: byte(i + 1)}, Workspace: uuid.UUID{14: 1, 15: byte(i % 2)}, Tenant: w.Tenants[i%2%len(w.Tenants)],
			Scopes: 1 << w.List.Number, Limit: apikey.Limit{Set: true, Rate: large, Burst: large, Version: 1}}
		a := account{text: text, key: k}
		switch i {
		case 2:
			a.key.Limit = apikey.Limit{Set: true, Rate: 5, Burst: 3, Version: 1}
		case 3, 4:
			a.key.Workspace = uuid.UUID{14: 2}
			a.key.Tenant = w.Tenants[0]
			a.key.WorkspaceLimit = apikey.Limit{Set: true, Rate: 20, Burst: 5, Version: 1}
		case 5:
			a.key.Suspended, a.status = true, http.StatusForbidden
		case 6:
			a.key.Scopes, a.status = 0, http.StatusForbidden
		case 7:
			a.unknown, a.status = true, http.StatusUnauthorized
		case 8: // malformed
			a.unknown, a.status = true, http.StatusUnauthorized
		}
		for range 1 + max(0, 6-3*i) {
			w.visitors = append(w.visitors, &visitor{number: len(w.visitors), account: a})
		}
	}
}

// visit is a request with its answer, as they are sent.
type visit struct {
	*ask
	client   *visitor
	id       string
	head     bool
	gzip     bool
	tag      string // that the client has; empty = none
	hangsUp  bool   // the client ends the connection before the answer
	spending []*spending
	nodeTime time.Duration // by the clock of the node, when it ended

	taken  bool // by the server
	answer *http.Response
	body   []byte
	failed error // why there is no answer
}

// knock lets a client send a request to a node, or two at once.
func (w *run) knock(a *ask) {
	c := w.someVisitor(a)
	if c == nil {
		if a.walk != nil {
			a.walk.waits = false
		}
		return
	}
	a.node = c.node
	visits := []*visit{w.newVisit(c, a, "")}
	if w.Chance(8) { // and another one, maybe of another client behind the same proxy
		second := *a
		second.walk, second.kind = nil, askKind(w.Rand().IntN(int(askKinds)))
		visits = append(visits, w.newVisit(w.visitors[w.Rand().IntN(len(w.visitors))], &second, "-2"))
	}
	visits[len(visits)-1].hangsUp = w.Happens(world.HangsUp, 50)
	c.busy = true
	w.request(func() { c.exchange(visits) }, func() {
		c.busy = false
		for _, v := range visits {
			w.judgeVisit(v)
		}
	})
}

// someVisitor returns a client that has a connection, and waits for nothing; nil = there is none.
func (w *run) someVisitor(a *ask) *visitor {
	r := w.Rand()
	c := w.visitors[r.IntN(len(w.visitors))]
	if c.busy || a.walk != nil && (c.status != 0 || c.key.Tenant != a.q.Tenant) {
		return nil
	}
	if c.conn != nil && w.Chance(30) {
		c.disconnect()
	}
	for i := range w.nodes {
		to := w.nodes[(a.node.number+i)%len(w.nodes)]
		if c.conn == nil && (to.door.drains.IsZero() || w.Chance(8)) {
			c.node, c.conn = to, to.door.connect(c)
			c.in = bufio.NewReader(c.conn)
		}
	}
	if c.conn == nil {
		return nil
	}
	return c
}

func (c *visitor) disconnect() {
	c.conn.Close()
	c.conn = nil
}

// newVisit makes a request of a client, which may ask again for what it has.
func (w *run) newVisit(c *visitor, a *ask, suffix string) *visit {
	r := w.Rand()
	v := &visit{ask: a, client: c, id: fmt.Sprintf("request-%d%s", a.number, suffix), head: r.IntN(10) == 0, gzip: r.IntN(3) == 0}
	if a.walk == nil {
		a.q.Tenant = c.key.Tenant
		if c.tag != "" && r.IntN(3) == 0 {
			a.q, v.tag = c.q, c.tag
		}
	}
	a.stepped = a.node.stepped
	if c.status == 0 {
		v.spending = a.node.door.begin(&c.key)
	}
	return v
}

// write writes the request.
func (v *visit) write(to *strings.Builder) {
	method := "GET"
	if v.head {
		method = "HEAD"
	}
	fmt.Fprintf(to, "%s %s HTTP/1.1\r\nHost: a\r\nX-API-Key: %s\r\nX-Request-Id: %s\r\n", method, world.Target(&v.q), v.client.text, v.id)
	if v.kind != ordinary {
		fmt.Fprintf(to, "Cache-Control: %s\r\n", v.kind)
	}
	if v.tag != "" {
		fmt.Fprintf(to, "If-None-Match: %s\r\n", v.tag)
	}
	if v.gzip {
		to.WriteString("Accept-Encoding: gzip\r\n")
	}
	to.WriteString("\r\n")
}

var errNotTaken, errHungUp = errors.New("the connection had ended"), errors.New("the client has hung up")

// exchange sends requests, and reads the answers.
func (c *visitor) exchange(visits []*visit) {
	var text strings.Builder
	for _, v := range visits {
		v.write(&text)
	}
	_, err := io.WriteString(c.conn, text.String()) // a pipe: what is written has been read
	for _, v := range visits {
		v.taken, v.failed = err == nil, errNotTaken
	}
	for _, v := range visits {
		switch {
		case err != nil:
		case c.conn == nil: // the answer before it closed the connection
			v.taken = false
		case v.hangsUp:
			err, v.failed = errHungUp, errHungUp
		default:
			v.answer, err = http.ReadResponse(c.in, &http.Request{Method: map[bool]string{true: "HEAD", false: "GET"}[v.head]})
			if err == nil {
				v.body, err = io.ReadAll(v.answer.Body)
			}
			v.failed = err
			if err == nil && v.answer.Close {
				c.disconnect()
			}
		}
		v.ended, v.nodeTime = v.node.pages.run.Now(), v.node.machine.Clock.Now()
	}
	if err != nil {
		c.disconnect()
	}
}
