package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"listedge/edge/admin"
	"listedge/metrics"
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

// nodeAddress is the address of one node.
type nodeAddress struct {
	url  AdminURL
	name string // for the output
	dial string // host:port to connect to; empty = that of the URL
}

// addresses resolves the URL's host and returns the addresses of its nodes.
func (u AdminURL) addresses(ctx context.Context) ([]nodeAddress, error) {
	if _, err := netip.ParseAddr(u.Hostname()); err == nil {
		return []nodeAddress{{url: u, name: u.Host}}, nil
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	if err != nil {
		return nil, err
	}
	several := nodeAddresses(found)
	if len(several) == 0 {
		return []nodeAddress{{url: u, name: u.Host}}, nil
	}
	port := u.Port()
	if port == "" {
		port = u.Scheme
	}
	var all []nodeAddress
	for _, address := range several {
		dial := net.JoinHostPort(address.String(), port)
		all = append(all, nodeAddress{url: u, name: dial, dial: dial})
	}
	return all, nil
}

// nodeAddresses returns one address for each node, out of all addresses of a name. It
// returns none if the name is that of one node. A node may have an IPv4 and an IPv6
// address, so it uses only the family with more addresses.
func nodeAddresses(found []netip.Addr) []netip.Addr {
	var four, six []netip.Addr
	for _, a := range found {
		if a = a.Unmap(); a.Is4() {
			four = append(four, a)
		} else {
			six = append(six, a)
		}
	}
	nodes := four
	if len(six) > len(four) {
		nodes = six
	}
	if len(nodes) < 2 {
		return nil
	}
	slices.SortFunc(nodes, netip.Addr.Compare)
	return slices.Compact(nodes)
}

// nodeState is what the admin listener of a node returns.
type nodeState struct {
	name      string
	err       error // why the node could not be read
	readiness admin.Readiness
	metrics   metrics.Reading
	settings  map[string]any
	ahead     time.Duration // the least distance by which the node's clock is ahead of this machine's: see clockAhead
}

// readNodes reads the state of all nodes of the URLs, in their order, each node once.
func readNodes(ctx context.Context, urls []AdminURL) (all []nodeState) {
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	found, failed := make([][]nodeAddress, len(urls)), make([]error, len(urls))
	var calls sync.WaitGroup
	for i, u := range urls {
		calls.Go(func() { found[i], failed[i] = u.addresses(ctx) })
	}
	calls.Wait()
	known := map[string]bool{}
	var addresses []nodeAddress
	for i, err := range failed {
		if err != nil {
			all = append(all, nodeState{name: urls[i].Host, err: err})
		}
		for _, a := range found[i] {
			if !known[a.name] {
				known[a.name] = true
				addresses = append(addresses, a)
			}
		}
	}
	nodes := make([]nodeState, len(addresses))
	for i, a := range addresses {
		calls.Go(func() { nodes[i] = a.read(ctx) })
	}
	calls.Wait()
	return append(all, nodes...)
}

// read reads readiness, metrics and settings, until the deadline of ctx.
func (a nodeAddress) read(ctx context.Context) (n nodeState) {
	n.name = a.name
	transport := http.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	if a.dial != "" {
		transport.Proxy = nil
		transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, a.dial)
		}
	}
	client := &http.Client{Transport: transport}
	if n.readiness, n.err = a.readiness(ctx, client); n.err == nil {
		sent := time.Now()
		n.err = a.get(ctx, client, "metrics", func(r *http.Response, body io.Reader) (err error) {
			if date, err := http.ParseTime(r.Header.Get("Date")); err == nil {
				n.ahead = clockAhead(date, sent, time.Now())
			}
			n.metrics, err = metrics.Read(body)
			return err
		})
	}
	if n.err == nil {
		n.err = a.get(ctx, client, "settings", func(r *http.Response, body io.Reader) error {
			return json.NewDecoder(body).Decode(&n.settings)
		})
	}
	if ctx.Err() != nil && n.err != nil {
		n.err = fmt.Errorf("no answer within %s", nodeTimeout)
	}
	return n
}

// readiness reads /readyz.
func (a nodeAddress) readiness(ctx context.Context, client *http.Client) (found admin.Readiness, err error) {
	err = a.get(ctx, client, "readyz", func(r *http.Response, body io.Reader) error {
		if r.StatusCode != http.StatusOK && r.StatusCode != http.StatusServiceUnavailable {
			return errors.New("unexpected status")
		}
		return json.NewDecoder(body).Decode(&found)
	})
	return found, err
}

// get requests a path, which may have a query, and passes the response to the function.
func (a nodeAddress) get(ctx context.Context, client *http.Client, path string, read func(*http.Response, io.Reader) error) error {
	path, query, _ := strings.Cut(path, "?")
	u := a.url.JoinPath(path)
	u.RawQuery = query
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	if a.dial != "" && a.url.Scheme == "http" {
		request.Host = a.dial // an admin listener refuses unknown host names
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

// clockAhead returns the least distance by which another clock is ahead of this machine's;
// negative if it is behind, 0 if it may be right. The other clock showed date, which is
// rounded down to a second, at some moment between sent and received.
func clockAhead(date, sent, received time.Time) time.Duration {
	return max(date.Sub(received), 0) + min(date.Add(time.Second).Sub(sent), 0)
}

// Get requests a path from the node, and passes the response to the function.
func (u AdminURL) Get(ctx context.Context, path string, read func(*http.Response, io.Reader) error) error {
	return nodeAddress{url: u}.get(ctx, http.DefaultClient, path, read)
}

// Ready returns nil if the node is ready, and otherwise says why it is not.
func (u AdminURL) Ready(ctx context.Context) error {
	n := nodeState{}
	n.readiness, n.err = nodeAddress{url: u}.readiness(ctx, http.DefaultClient)
	switch {
	case n.err != nil:
		return fmt.Errorf("ask the node: %w", n.err)
	case n.readiness.Draining:
		return errors.New("not ready: draining")
	case !n.readiness.Ready:
		return fmt.Errorf("not ready: %s", n.failingChecks())
	}
	return nil
}
