package edge

import (
	"bufio"
	"io"
	"net"
	"strings"
	"testing"
)

// asking serves on a free port until the test ends. ask sends a request on a connection of its own.
func asking(t *testing.T, s *Server) (ask func(t *testing.T, method, request string) answered) {
	t.Helper()
	dial := served(t, s, nil)
	return func(t *testing.T, method, request string) answered {
		t.Helper()
		c := dial(t)
		send(c, method+" "+request+"\r\n")
		return readAnswer(t, bufio.NewReader(c), method)
	}
}

func send(c net.Conn, s string) { _, _ = io.WriteString(c, s) }

// Routes match the target byte by byte, and nothing redirects.
func TestRoutes(t *testing.T) {
	_, parameters, _ := strings.Cut(theTarget, "?")
	s, _ := hitServer(t, "")
	ask := asking(t, s)
	for _, c := range []struct {
		name, method, path string
		status             int
		code               string // of the problem; empty = none
	}{
		{"list", "GET", "/v1/items", 200, ""},
		{"list, HEAD", "HEAD", "/v1/items", 200, ""},
		{"absolute form", "GET", "http://b/v1/items", 200, ""},
		{"slash at the end", "GET", "/v1/items/", 404, "NOT_FOUND"},
		{"capitals", "GET", "/V1/Items", 404, "NOT_FOUND"},
		{"two slashes", "GET", "/v1//items", 404, "NOT_FOUND"},
		{"two slashes in front", "GET", "//b/v1/items", 404, "NOT_FOUND"},
		{"dot segment", "GET", "/v1/./items", 404, "NOT_FOUND"},
		{"parent segment", "GET", "/v1/../v1/items", 404, "NOT_FOUND"},
		{"percent-encoded letter", "GET", "/v1/%69tems", 404, "NOT_FOUND"},
		{"percent-encoded slash", "GET", "/v1%2fitems", 404, "NOT_FOUND"},
		{"backslash", "GET", "/v1\\items", 404, "NOT_FOUND"},
		{"parameter in the path", "GET", "/v1/items;a", 404, "NOT_FOUND"},
		{"beginning of a path", "GET", "/v1", 404, "NOT_FOUND"},
		{"absolute form without a path", "GET", "http://b", 404, "NOT_FOUND"},
		{"POST", "POST", "/v1/items", 405, "REQUEST_FAILED"},
		{"OPTIONS", "OPTIONS", "/v1/items", 405, "REQUEST_FAILED"},
		{"OPTIONS of all", "OPTIONS", "*", 404, "NOT_FOUND"},
		{"unknown method", "LIST", "/v1/items", 405, "REQUEST_FAILED"},
		{"method in small letters", "get", "/v1/items", 405, "REQUEST_FAILED"},
		{"the wildcard's own name", "*", "/v1/items", 405, "REQUEST_FAILED"},
		{"DELETE of nothing", "DELETE", "/v1/nothing", 404, "NOT_FOUND"},
		{"openapi", "GET", "/openapi.json", 200, ""},
		{"POST of openapi", "POST", "/openapi.json", 405, "REQUEST_FAILED"},
		{"docs", "GET", "/docs", 200, ""},
		{"docs with a slash", "GET", "/docs/", 404, "NOT_FOUND"},
		{"POST of docs", "POST", "/docs", 405, "REQUEST_FAILED"},
		{"no such document", "GET", "/docs/nothing", 404, "NOT_FOUND"},
		{"POST of no such document", "POST", "/docs/nothing", 404, "NOT_FOUND"},
		{"longer than any path", "GET", "/docs/" + strings.Repeat("a/../", 3_000), 404, "NOT_FOUND"},
		{"document in two steps", "GET", "/docs//", 404, "NOT_FOUND"},
	} {
		t.Run(c.name, func(t *testing.T) {
			target := c.path
			if !strings.HasPrefix(target, "/docs") && target != "*" {
				target += "?" + parameters
			}
			got := ask(t, c.method, target+" HTTP/1.1\r\nHost: a\r\nX-API-Key: "+aKey+"\r\n")
			if got.Status != c.status || got.Header("Location") != "" || c.code != "" && !strings.Contains(got.Body, `"code":"`+c.code+`"`) {
				t.Errorf("%d, want %d: %s", got.Status, c.status, got.Body)
			}
			if allow := got.Head.Values("Allow"); (c.status == 405) != (len(allow) == 1 && allow[0] == "GET, HEAD") {
				t.Errorf("Allow: %q", allow)
			}
		})
	}
	t.Run("HTTP/1.0 without a host", func(t *testing.T) {
		if got := ask(t, "GET", "//b/v1/items HTTP/1.0\r\n"); got.Status != 404 {
			t.Error(got.Status)
		}
	})
}
