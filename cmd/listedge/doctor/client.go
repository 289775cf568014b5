package doctor

import (
	"cmp"
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
	found = oneFamily(found)
	if len(found) == 1 {
		return []nodeAddress{{url: u, name: u.Host}}, nil
	}
	var all []nodeAddress
	for _, address := range found {
		dial := net.JoinHostPort(address.Unmap().String(), cmp.Or(u.Port(), u.Scheme))
		all = append(all, nodeAddress{url: u, name: dial, dial: dial})
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
	name      string
	err       error // why the node could not be read
	readiness admin.Readiness
	metrics   metrics.Reading
	settings  map[string]any
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
		n.err = a.get(ctx, client, "metrics", func(_ *http.Response, body io.Reader) (err error) {
			n.metrics, err = metrics.Read(body)
			return err
		})
	}
	if n.err == nil {
		n.err = a.get(ctx, client, "settings", func(_ *http.Response, body io.Reader) error {
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
