package deploy_test

import (
	"encoding/csv"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"listedge/internal/sandbox"
	"listedge/internal/sandbox/sandboxtest"
)

// servers are changes to HAProxy's configuration, which name the nodes by their addresses.
func (f *fleet) servers() (changes []string) {
	var servers strings.Builder
	for i, n := range f.nodes {
		checked := n.admin
		if n.gate != nil {
			checked = n.gate.Addr()
		}
		_, admin, _ := strings.Cut(checked, ":")
		fmt.Fprintf(&servers, "    server node%d %s port %s\n", i+1, n.public, admin)
	}
	return []string{" check port 9090 ", " check ", " resolvers docker resolve-prefer ipv4 init-addr none", "",
		"    server-template node 12 node:8080\n", servers.String()}
}

// startHAProxy starts one with the configuration of the stack but for its ports and the changes.
func startHAProxy(t *testing.T, changes ...string) (public, stats string) {
	t.Helper()
	public, stats = freePort(), freePort()
	runHAProxy(t, public, stats, changes...)
	return public, stats
}

func runHAProxy(t *testing.T, public, stats string, changes ...string) *sandbox.Child {
	t.Helper()
	changes = append(changes, "bind :8080", "bind 127.0.0.1:"+public, "bind :8404", "bind 127.0.0.1:"+stats)
	return startProgram(t, exec.Command(tool("haproxy"), "-db", "-f", write(t, "haproxy.cfg", replaced(t, "haproxy/haproxy.cfg", changes...))))
}

// startHAProxy starts the load balancer of the fleet, or starts it again.
func (f *fleet) startHAProxy(t *testing.T) {
	t.Helper()
	if f.balancer == nil {
		f.public, f.stats = freePort(), freePort()
	}
	f.balancer = runHAProxy(t, f.public, f.stats, f.servers()...)
}

// A deployment replaces every node, one after the other, while clients go on
// asking on connections that they keep. Nobody may notice.
//
// HAProxy reaches a node's /readyz through a gate, which opens once the node has answered a request: on a busy machine
// it may not look up its first key, or read its first page, in time. Then it answers 503, and not because nodes are replaced.
func TestNoRequestIsLostWhileNodesAreReplaced(t *testing.T) {
	t.Parallel()
	f, names := startServers(t), startNames(t)
	const path = "/v1/items?limit=10"
	served, asked := freePort(), freePort()
	gated := func(n *node, address string) *node {
		n.gate = sandboxtest.StartRelayAt(t, address, n.admin)
		must(n.gate.Refuse(true))
		return n
	}
	open := func(n *node) {
		n.await200(t, path)
		must(n.gate.Refuse(false))
	}
	add := func() *node { // at an address of its own and the ports that all have, as a container
		host := "127.0.0." + strconv.Itoa(len(f.nodes)+1)
		defer names.add(host)
		return gated(f.addAt(t, host+":"+served, host+":"+freePort()), host+":"+asked)
	}
	var changes []string
	if runtime.GOOS == "linux" {
		for range 3 {
			add()
		}
		changes = []string{"127.0.0.11:53", names.address, "hold obsolete 10s", "hold obsolete 1s", "node:8080", "node:" + served, " check port 9090 ",
			" check port " + asked + " "}
	} else { // elsewhere than on Linux only 127.0.0.1 is configured
		for range 3 {
			gated(f.add(t), "127.0.0.1:0")
		}
		changes = f.servers()
	}
	for _, n := range f.nodes {
		n.awaitMode(t, "followed")
		open(n)
	}
	public, stats := startHAProxy(t, changes...)
	up := func(down ...*node) func() bool {
		return func() bool {
			state := ofServers(stats, "status")
			for _, n := range f.nodes {
				want := "UP"
				if slices.Contains(down, n) {
					want = "DOWN"
				}
				if state[n.public] != want {
					return false
				}
			}
			return len(state) == len(f.nodes)
		}
	}
	within(t, patience, "all nodes up", up())
	check := slices.Clone([]string(stack(t).Services["haproxy"].HealthCheck.Test[1:]))
	for i := range check {
		check[i] = strings.ReplaceAll(check[i], "8404", stats)
	}
	if said, err := exec.Command(check[0], check[1:]...).CombinedOutput(); err != nil {
		t.Errorf("the stack's health check of HAProxy: %v: %s", err, said)
	}

	c := startClients(t, 8, 25*time.Millisecond, "http://127.0.0.1:"+public, f.key, func(int64) string { return path }, func() {})
	for _, n := range f.nodes {
		before := c.answered.Load()
		if how := n.stop(t); how != "exit status 0" {
			t.Errorf("the node ended with %s", how)
		}
		within(t, patience, "the node is out", up(n))
		must(n.gate.Refuse(true))
		n.start(t)
		open(n)
		within(t, patience, "the node is back", up())
		if c.answered.Load() == before {
			t.Error("no request was answered meanwhile")
		}
	}
	if runtime.GOOS == "linux" { // `docker compose up --scale node=4`, and back
		open(add())
		within(t, patience, "the fourth node gets requests", func() bool {
			return up()() && !slices.Contains([]string{"", "0"}, ofServers(stats, "stot")[f.nodes[3].public])
		})
		if how := f.nodes[3].stop(t); how != "exit status 0" {
			t.Errorf("the node ended with %s", how)
		}
		names.remove("127.0.0.4")
		f.nodes = f.nodes[:3]
		within(t, patience, "the fourth node has lost its place", up())
	}
	c.end(t)
	for n, times := range ofServers(stats, "wretr") {
		if times != "0" {
			t.Errorf("HAProxy had to send requests to %s again: nodes leave before it knows", n)
		}
	}
}

// clients ask for pages on connections that they keep.
type clients struct {
	stop           chan struct{}
	all            sync.WaitGroup
	answered, lost atomic.Int64
}

// startClients starts some, which pause between requests: the machine has others to serve. The path is by the number of the request.
func startClients(t *testing.T, many int, pause time.Duration, address, key string, path func(i int64) string, asked func()) *clients {
	c := &clients{stop: make(chan struct{})}
	for range many {
		c.all.Go(func() {
			for {
				select {
				case <-c.stop:
					return
				case <-time.After(pause):
				}
				status, body, err := get(address+path(c.answered.Load()+c.lost.Load()), key)
				if err == nil && status == http.StatusOK {
					c.answered.Add(1)
				} else if c.lost.Add(1) == 1 {
					t.Errorf("the first request that was lost: %d %v %s", status, err, body)
				}
				asked()
			}
		})
	}
	return c
}

// end ends them, and fails the test if a request was lost.
func (c *clients) end(t *testing.T) {
	t.Helper()
	close(c.stop)
	c.all.Wait()
	if t.Logf("%d requests answered, %d lost", c.answered.Load(), c.lost.Load()); c.lost.Load() > 0 {
		t.Errorf("%d requests lost", c.lost.Load())
	}
}

// ofServers is a column of HAProxy's statistics for each node, by its address:
// `status` is UP, DOWN or on the way (UP 1/2). Places without an address are left out.
func ofServers(port, column string) map[string]string {
	status, body, err := get("http://127.0.0.1:"+port+"/;csv", "")
	if err != nil || status != http.StatusOK {
		return nil
	}
	rows, err := csv.NewReader(strings.NewReader(strings.TrimPrefix(string(body), "# "))).ReadAll()
	if err != nil || len(rows) == 0 {
		return nil
	}
	of := func(row []string, name string) string { return row[slices.Index(rows[0], name)] }
	values := map[string]string{}
	for _, row := range rows[1:] {
		if of(row, "pxname") == "nodes" && of(row, "svname") != "BACKEND" && !strings.HasPrefix(of(row, "status"), "MAINT") {
			values[of(row, "addr")] = of(row, column)
		}
	}
	return values
}

// names answers as Docker's resolver does: the name of a service has the addresses of
// all its containers, in an order that changes.
type names struct {
	address string // host:port

	mu    sync.Mutex // guards hosts
	hosts [][4]byte
}

func startNames(t *testing.T) *names {
	t.Helper()
	socket := must1(net.ListenPacket("udp", "127.0.0.1:0"))
	n, ended := &names{address: socket.LocalAddr().String()}, make(chan struct{})
	t.Cleanup(func() { socket.Close(); <-ended })
	go func() {
		defer close(ended)
		for question := make([]byte, 4096); ; {
			size, from, err := socket.ReadFrom(question)
			if err != nil {
				return
			}
			if answer, err := n.answer(question[:size]); err == nil {
				_, _ = socket.WriteTo(answer, from)
			}
		}
	}()
	return n
}

func (n *names) answer(question []byte) ([]byte, error) {
	var p dnsmessage.Parser
	header, err := p.Start(question)
	if err != nil {
		return nil, err
	}
	q, err := p.Question()
	if err != nil {
		return nil, err
	}
	header.Response, header.Authoritative = true, true
	answer := dnsmessage.Message{Header: header, Questions: []dnsmessage.Question{q}}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, host := range n.hosts {
		if q.Type == dnsmessage.TypeA && q.Name.String() == "node." {
			answer.Answers = append(answer.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 600},
				Body:   &dnsmessage.AResource{A: host}})
		}
	}
	if len(n.hosts) > 0 {
		n.hosts = append(n.hosts[1:], n.hosts[0])
	}
	return answer.Pack()
}

func (n *names) add(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts = append(n.hosts, netip.MustParseAddr(host).As4())
}

func (n *names) remove(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts = slices.DeleteFunc(n.hosts, func(h [4]byte) bool { return netip.AddrFrom4(h).String() == host })
}
