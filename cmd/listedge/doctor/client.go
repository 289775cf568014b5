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
	"net/url"
	"strings"
)

// AdminURL is the address of a node's admin listener.
type AdminURL struct{ url.URL }

// UnmarshalText reads http://host:port, or host:port alone.
func (u *AdminURL) UnmarshalText(text []byte) error {
	address := string(text)
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	parsed, err := url.Parse(strings.TrimSuffix(address, "/"))
	if err != nil || parsed.Hostname() == "" || parsed.Scheme != "http" && parsed.Scheme != "https" {
		return errors.New("not the http:// or https:// URL of an admin listener")
	}
	u.URL = *parsed // without a slash at its end
	return nil
}

// nodes returns a URL for each node that the host's name means. An https:// URL is that of a
// proxy, whose certificate has its name: it means one node.
func (u AdminURL) nodes(ctx context.Context) (all []AdminURL) {
	if u.Scheme == "https" {
		return []AdminURL{u}
	}
	found, _ := net.DefaultResolver.LookupNetIP(ctx, "ip4", u.Hostname())
	if len(found) == 0 { // else not asked for: a node may have an address of each family
		found, _ = net.DefaultResolver.LookupNetIP(ctx, "ip6", u.Hostname())
	}
	if len(found) < 2 {
		return []AdminURL{u} // reading it says why a name has no address
	}
	for _, address := range found {
		one := u
		one.Host = net.JoinHostPort(address.Unmap().String(), cmp.Or(u.Port(), "80"))
		all = append(all, one)
	}
	return all
}

// client is for requests to nodes. It uses no proxy: they are in the same network.
var client = &http.Client{Transport: &http.Transport{}}

// Get requests a path, which may have a query, from the node, and reads the JSON of the response.
func (u AdminURL) Get(ctx context.Context, path string, to any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String()+"/"+path, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return errors.Unwrap(err) // without the URL
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK, http.StatusServiceUnavailable: // which is also a response of /readyz
		err = json.NewDecoder(response.Body).Decode(to)
	case http.StatusMisdirectedRequest:
		why, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return errors.New(strings.TrimSpace(string(why)))
	default:
		err = errors.New("unexpected status")
	}
	if err != nil {
		return fmt.Errorf("/%s is not the response of a node (%s): %w", path, response.Status, err)
	}
	return nil
}
