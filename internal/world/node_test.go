package world_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/uuid"

	product "listedge/cmd/listedge/node"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/world"
	"listedge/origin/apikey"
	"listedge/origin/usage"
)

// Whole nodes in a bubble: product.New with its own clients of Postgres and Redis, whose servers are stand-ins that speak their protocols.
// Time is virtual, so timeouts are exact. Changes are not followed here.

// host is where a server is reached. It may hang: then it answers nothing, and what it does is seen once it goes on.
type host struct {
	serve func(net.Conn)

	mu     sync.Mutex // guards all below
	goesOn chan struct{}
	conns  []net.Conn
	ever   int // connections that were made
	served int // that are served
}

// newHost makes one whose server goes on.
func newHost(serve func(net.Conn)) *host {
	h := &host{serve: serve, goesOn: make(chan struct{})}
	close(h.goesOn)
	return h
}

func (h *host) dial() net.Conn {
	ours, theirs := net.Pipe()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns = append(h.conns, theirs)
	h.ever++
	h.served++
	go func() {
		h.serve(held{theirs, h})
		h.mu.Lock()
		defer h.mu.Unlock()
		h.served--
	}()
	return ours
}

// open is how many connections there are.
func (h *host) open() int {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.served
}

// hang makes the server hang until the function that it returns is called.
func (h *host) hang() (goOn func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	waits := make(chan struct{})
	h.goesOn = waits
	return func() { close(waits) }
}

// cut ends all connections.
func (h *host) cut() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.conns {
		c.Close()
	}
	h.conns = nil
}

// made is how many connections were ever made.
func (h *host) made() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ever
}

// held is the server's end of a connection.
type held struct {
	net.Conn
	host *host
}

// Write waits while the server hangs.
func (c held) Write(b []byte) (int, error) {
	c.host.mu.Lock()
	goesOn := c.host.goesOn
	c.host.mu.Unlock()
	<-goesOn
	return c.Conn.Write(b)
}

// site has a Postgres, a Redis, and nodes.
type site struct {
	t               *testing.T
	postgres, redis *host
	database        *postgresStandIn
	key             string // of the client
}

// running is a node that runs.
type running struct {
	site            *site
	public, private *listener
	client          *http.Client
	stop            context.CancelFunc
	ended           chan error
}

// theKey is the id of the client's key, and theWorkspace that of its workspace.
var theKey, theWorkspace = uuid.UUID{15: 1}, uuid.UUID{14: 1}

// inBubble plays with a site in virtual time. It fails if a goroutine of a node outlives it.
func inBubble(t *testing.T, play func(t *testing.T, s *site)) {
	startDate()
	later := time.Now().Add(time.Hour)
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(later)) // fasthttp has the time of the last request from outside, and closes what was idle since
		s := &site{t: t, key: apikey.Generate(), database: newPostgresStandIn()}
		hash, _ := apikey.HashOf([]byte(s.key))
		s.database.keys[hash] = keyJSON(hash)
		s.postgres = newHost(s.database.serve)
		s.redis = newHost(world.NewRedis("stand-in", time.Now).ServeConn)
		play(t, s)
		time.Sleep(workersEnd)
	})
}

func newPostgresStandIn() *postgresStandIn {
	return &postgresStandIn{keys: map[apikey.Hash]string{}, rows: map[*list.List][][]byte{
		listtest.Items:    listtest.Texts(listtest.Items, "id", listtest.ID(1), "name", "Bolt", "type", "GOODS"),
		listtest.Contacts: listtest.Texts(listtest.Contacts, "id", listtest.ID(2), "name", "Ann", "is_customer", "t"),
	}, asked: map[string]question{}, used: map[string]usage.Counts{}, batch: map[string]int64{}}
}

// keyJSON is a key as the statement of keys has it.
func keyJSON(hash apikey.Hash) string {
	text, err := json.Marshal(map[string]any{"Hash": hash[:], "ID": theKey, "Workspace": theWorkspace, "Tenant": theWorkspace.String(),
		"Lists": []int{0, 1}, "Rate": 1000, "Burst": 1000, "ExpiresAt": 0, "Revoked": false, "Suspended": false, "Scheduled": false,
		"WorkspaceRate": nil, "WorkspaceBurst": nil, "Quota": nil, "Label": map[string]string{"Prefix": "lk_", "Name": "a"}})
	if err != nil {
		panic(err)
	}
	return string(text)
}

// start starts a node, and waits until it is ready.
func (s *site) start(name string, flags ...string) *running {
	var f struct {
		product.ListenFlags
		product.Flags
	}
	parser := kong.Must(&f, kong.Vars{"drain": "3s"})
	_, err := parser.Parse(append([]string{"--freshness-bound=0", "--redis-url=redis://127.0.0.1:6379", "--node-id=" + name}, flags...))
	if err != nil {
		s.t.Fatal(err)
	}
	const url = "postgres://listedge@127.0.0.1:5432/listedge?sslmode=disable"
	r := &running{site: s, public: newListener(), private: newListener(), ended: make(chan error, 1)}
	lines := product.NewLineQueue(s.t.Output())
	o := product.Options{Flags: f.Flags, DatabaseURL: url, ReplicationURL: url, Lists: list.BuiltIn(), Settings: map[string]any{}, Version: "world",
		Log: product.NewLog(lines, f.Flags), Public: r.public, Private: r.private,
		Dial: func(_ context.Context, _, address string) (net.Conn, error) {
			if strings.HasSuffix(address, ":6379") {
				return s.redis.dial(), nil
			}
			return s.postgres.dial(), nil
		}}
	ctx, stop := context.WithCancel(s.t.Context())
	n, err := product.New(ctx, o)
	if err != nil {
		s.t.Fatal(err)
	}
	r.stop = stop
	r.client = &http.Client{Transport: &http.Transport{DialContext: func(_ context.Context, _, address string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		to := r.public
		if strings.HasPrefix(address, "private") {
			to = r.private
		}
		if !to.hand(theirs) {
			return nil, net.ErrClosed
		}
		return ours, nil
	}}}
	go func() {
		err := n.Serve(ctx)
		lines.Close()
		r.client.CloseIdleConnections()
		r.ended <- err
	}()
	for range 100 {
		if r.ready().status == http.StatusOK {
			return r
		}
		time.Sleep(100 * time.Millisecond)
	}
	s.t.Fatalf("the node does not become ready: %+v", r.ready())
	return nil
}

// end stops the node, and waits until it has ended.
func (r *running) end() {
	r.site.t.Helper()
	r.stop()
	if err := <-r.ended; err != nil {
		r.site.t.Error(err)
	}
}

// got is an answer, and how long it took.
type got struct {
	status int
	cache  string // Cache-Status
	body   string
	took   time.Duration
	closes bool
	err    error
}

// get sends a request to one of the listeners.
func (r *running) get(from, target string) (g got) {
	began := time.Now()
	request, err := http.NewRequestWithContext(r.site.t.Context(), http.MethodGet, "http://"+from+target, nil)
	if err != nil {
		panic(err)
	}
	request.Host = "127.0.0.1"
	request.Header.Set("X-API-Key", r.site.key)
	answer, err := r.client.Do(request)
	if err != nil {
		return got{err: err, took: time.Since(began)}
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return got{answer.StatusCode, answer.Header.Get("Cache-Status"), string(body), time.Since(began), answer.Close, err}
}

// page gets a page. Each limit is another one.
func (r *running) page(limit int) got {
	return r.get("public", fmt.Sprintf("/v1/items?limit=%d", limit))
}

// ready asks whether the node is ready.
func (r *running) ready() got { return r.get("private", "/readyz") }

// expect compares what came with what is promised.
func expect(t *testing.T, what string, g got, status int, cache string, took time.Duration) {
	t.Helper()
	if g.err != nil || g.status != status || !strings.Contains(g.cache, cache) || g.took != took {
		t.Errorf("%s: %d, %q after %s, %v; want %d, %q after %s", what, g.status, g.cache, g.took, g.err, status, cache, took)
	}
}

// A request that needs a Postgres which hangs gets the stale page after a second at most (those of the next second get it at once),
// or 503 once the query has timed out. Once three queries in a row have failed, the breaker is open. A failed primary is tried again
// within 0.4 s.
func TestAPostgresThatHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		n := s.start("one")
		expect(t, "a page", n.page(1), 200, "uri-miss", 0)
		expect(t, "the page again", n.page(1), 200, "hit", 0)
		time.Sleep(3 * time.Second) // it has expired
		n.page(2)
		goOn := s.postgres.hang()
		expect(t, "a page that is known", n.page(1), 200, "stale", 800*time.Millisecond)
		expect(t, "and within a second", n.page(1), 200, "stale", 0)
		expect(t, "and again", n.page(1), 200, "stale", 0)
		time.Sleep(2 * time.Second) // the query of the page that is known has failed
		for i := range 2 {
			if g := n.page(3 + i); g.status != 503 || g.took < 2*time.Second || g.took > 3*time.Second {
				t.Errorf("a page that is not known: %+v", g)
			}
		}
		for i := range 3 {
			expect(t, "once three queries have failed", n.page(5+i), 503, "", 0)
		}
		expect(t, "a page that is known", n.page(1), 200, "stale", 0)
		goOn()
		time.Sleep(400 * time.Millisecond)
		expect(t, "once it goes on", n.page(3), 200, "uri-miss", 0)
		expect(t, "the page that was stale", n.page(1), 200, "", 0)
		time.Sleep(10 * time.Second)
		goOn = s.postgres.hang()
		time.Sleep(time.Second)
		expect(t, "a page that is known, with a key that was not used for long", n.page(1), 200, "stale", time.Second)
		goOn()
		n.end()
	})
}

// Redis down or hung costs a request at most 10 ms for its limit and 20 ms for its page. After three such requests it costs nothing,
// until Redis answers again.
func TestARedisThatHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		n := s.start("one")
		n.page(1)
		goOn, waited := s.redis.hang(), time.Duration(0)
		for i := range 20 {
			g := n.page(2 + i)
			waited += g.took
			if g.status != 200 || g.took > 30*time.Millisecond || i >= 6 && g.took > 0 {
				t.Errorf("request %d while Redis hangs: %+v", i, g)
			}
		}
		if waited < 3*20*time.Millisecond || waited > 3*30*time.Millisecond {
			t.Errorf("requests have waited %s", waited)
		}
		time.Sleep(5 * time.Second)
		if ready := n.ready(); ready.status != 200 || !strings.Contains(ready.body, `"redis":"no answer in time`) {
			t.Errorf("while Redis hangs: %+v", ready)
		}
		goOn()
		time.Sleep(5 * time.Second)
		if ready := n.ready(); ready.status != 200 || !strings.Contains(ready.body, `"redis":"ok"`) || !strings.Contains(ready.body, `"redis limits":"ok"`) {
			t.Errorf("when Redis goes on: %+v", ready)
		}
		n.page(22)
		other := s.start("two")
		expect(t, "a page that another node has stored", other.page(22), 200, "hit", 0)
		other.end()
		n.end()
	})
}

// A restart of Postgres costs almost no request once it is back: a node reads again on a new connection if the old one has ended.
func TestConnectionsThatAreCut(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		n := s.start("one")
		for i := range 8 {
			s.postgres.cut()
			s.redis.cut()
			before := s.postgres.made()
			expect(t, "a page", n.page(1+i), 200, "uri-miss", 0)
			if s.postgres.made() == before {
				t.Error("no connection has replaced one that was cut")
			}
			time.Sleep(time.Second)
		}
		if n := s.postgres.made(); n > 60 {
			t.Errorf("%d connections were made", n)
		}
		n.end()
	})
}

// A node that drains answers all that it has taken, and closes each connection with its next answer. A client that then asks
// another node loses no request. It writes all usage, then ends what it has, and no goroutine is left.
func TestANodeThatDrains(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		first, second := s.start("one"), s.start("two")
		const taken = 10
		first.page(1)
		goOn := s.postgres.hang()
		answers := make(chan got, taken)
		for i := range taken {
			go func() { answers <- first.page(2 + i) }()
		}
		synctest.Wait()
		began := time.Now()
		first.stop()
		synctest.Wait()
		if ready := first.ready(); ready.status != http.StatusServiceUnavailable {
			t.Errorf("it drains: %+v", ready)
		}
		time.Sleep(time.Second)
		goOn()
		for range taken {
			if g := <-answers; g.status != 200 || !g.closes || g.took != time.Second {
				t.Errorf("a request that was taken: %+v", g)
			}
		}
		if g := first.page(1); g.status != 200 || !g.closes {
			t.Errorf("a request while it drains: %+v", g)
		}
		if err := <-first.ended; err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took < 3*time.Second || took > 3500*time.Millisecond {
			t.Errorf("it ends after %s", took)
		}
		if g := first.page(1); g.err == nil {
			t.Errorf("a request after its end: %+v", g)
		}
		if n := s.database.counted()[theKey.String()].Requests; n != taken+2 {
			t.Errorf("%d requests were counted, want %d", n, taken+2)
		}
		expect(t, "on another node", second.page(1), 200, "", 0)
		second.end()
		if n := s.database.counted()[theKey.String()].Requests; n != taken+3 {
			t.Errorf("%d requests were counted, want %d", n, taken+3)
		}
		if n := s.postgres.open() + s.redis.open(); n != 0 {
			t.Errorf("%d connections are left", n)
		}
	})
}
