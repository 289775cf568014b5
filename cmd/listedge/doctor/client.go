package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"listedge/edge/admin"
)

// nodeTimeout bounds resolving names and reading nodes.
const nodeTimeout = 3 * time.Second

// maxNodeResponse bounds one response of a node, in bytes.
const maxNodeResponse = 8 << 20

// AdminURL is the address of a node's admin listener.
type AdminURL struct{ url.URL }

// UnmarshalText reads http://host:port, or host:port alone.
func (u *AdminURL) UnmarshalText(text []byte) error {
	address := string(text)
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	parsed, err := url.Parse(address)
	if err != nil || parsed.Hostname() == "" || parsed.Scheme != "http" && parsed.Scheme != "https" {
		return errors.New("not the http:// or https:// URL of an admin listener")
	}
	u.URL = *parsed
	return nil
}

// nodes returns a URL for each node that the host's name means. An https:// URL is that of a
// proxy, whose certificate has its name: it means one node.
func (u AdminURL) nodes(ctx context.Context) ([]AdminURL, error) {
	if _, err := netip.ParseAddr(u.Hostname()); err == nil || u.Scheme == "https" {
		return []AdminURL{u}, nil
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	if found = oneFamily(found); err != nil || len(found) == 1 {
		return []AdminURL{u}, err
	}
	all := make([]AdminURL, len(found))
	for i, address := range found {
		all[i] = u
		all[i].Host = net.JoinHostPort(address.Unmap().String(), cmp.Or(u.Port(), "80"))
	}
	return all, nil
}

// oneFamily returns the IPv4 addresses, or those of IPv6 if there are no others: a node may
// have an address of each family.
func oneFamily(found []netip.Addr) []netip.Addr {
	six := func(a netip.Addr) bool { return !a.Unmap().Is4() }
	if four := slices.DeleteFunc(slices.Clone(found), six); len(four) > 0 {
		found = four
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return found
}

// nodeState is what the admin listener of a node returns.
type nodeState struct {
	name string
	err  error // why the node could not be read
	admin.State
	self     admin.NodeState
	settings map[string]any
}

// readNodes reads the state of all nodes of the URLs, in their order, each node once.
func readNodes(ctx context.Context, urls []AdminURL) []nodeState {
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	var calls sync.WaitGroup
	found, failed := make([][]AdminURL, len(urls)), make([]error, len(urls))
	for i, u := range urls {
		calls.Go(func() { found[i], failed[i] = u.nodes(ctx) })
	}
	calls.Wait()
	known, all := map[string]bool{}, []*nodeState{}
	for i := range urls {
		for _, u := range found[i] {
			if known[u.Host] {
				continue
			}
			known[u.Host] = true
			n := &nodeState{name: u.Host, err: failed[i]}
			if all = append(all, n); n.err == nil {
				calls.Go(func() { n.read(ctx, u) })
			}
		}
	}
	calls.Wait()
	nodes := make([]nodeState, len(all))
	for i, n := range all {
		nodes[i] = *n
	}
	return nodes
}

// read reads state and settings, until the deadline of ctx.
func (n *nodeState) read(ctx context.Context, u AdminURL) {
	if n.err = u.decode(ctx, "state", &n.State); n.err == nil {
		n.err = u.decode(ctx, "settings", &n.settings)
	}
	if ctx.Err() != nil && n.err != nil {
		n.err = fmt.Errorf("no answer within %s", nodeTimeout)
	}
	if i := slices.IndexFunc(n.Fleet, func(one admin.NodeState) bool { return one.Name == n.Self }); i >= 0 {
		n.self = n.Fleet[i]
	}
}

// client uses no proxy: nodes are in the same network.
var client = &http.Client{Transport: &http.Transport{}}

// Get requests a path, which may have a query, and passes the response to the function.
func (u AdminURL) Get(ctx context.Context, path string, read func(*http.Response, io.Reader) error) error {
	path, query, _ := strings.Cut(path, "?")
	to := u.JoinPath(path)
	to.RawQuery = query
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, to.String(), nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if failure := (*url.Error)(nil); errors.As(err, &failure) {
		return failure.Err // without the URL
	}
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusMisdirectedRequest {
		why, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return errors.New(strings.TrimSpace(string(why)))
	}
	if err := read(response, io.LimitReader(response.Body, maxNodeResponse)); err != nil {
		return fmt.Errorf("/%s is not the response of a node (%s): %w", path, response.Status, err)
	}
	return nil
}

// decode requests a path, and reads the JSON of the response.
func (u AdminURL) decode(ctx context.Context, path string, to any) error {
	return u.Get(ctx, path, func(r *http.Response, body io.Reader) error {
		if r.StatusCode != http.StatusOK && r.StatusCode != http.StatusServiceUnavailable { // which is also a response of /readyz
			return errors.New("unexpected status")
		}
		return json.NewDecoder(body).Decode(to)
	})
}

// Ready returns nil if the node is ready, and otherwise says why it is not.
func (u AdminURL) Ready(ctx context.Context) error {
	var r admin.Readiness
	if err := u.decode(ctx, "readyz", &r); err != nil {
		return fmt.Errorf("ask the node: %w", err)
	}
	if r.Draining {
		return errors.New("not ready: draining")
	}
	var failing []string
	for _, name := range slices.Sorted(maps.Keys(r.Checks)) {
		if what := r.Checks[name]; what != "ok" {
			failing = append(failing, name+": "+what)
		}
	}
	if !r.Ready {
		return fmt.Errorf("not ready: %s", strings.Join(failing, "; "))
	}
	return nil
}
