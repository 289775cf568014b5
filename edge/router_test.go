package edge

import (
	"io"
	"strings"
	"testing"
)

// Routes match the target byte by byte, and nothing redirects.
func TestRoutes(t *testing.T) {
	_, parameters, _ := strings.Cut(strings.Fields(thePage)[1], "?")
	s, _ := hitServer(t, `{"data":[]`)
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
			conn, r := listening(t, s)
			target := c.path
			if !strings.HasPrefix(target, "/docs") && target != "*" {
				target += "?" + parameters
			}
			_, _ = io.WriteString(conn, c.method+" "+target+" HTTP/1.1\r\nHost: a\r\nX-API-Key: "+aKey+"\r\n\r\n")
			got := readAnswer(t, r, c.method)
			if got.status != c.status || got.header("Location") != "" || c.code != "" && !strings.Contains(got.body, `"code":"`+c.code+`"`) {
				t.Errorf("%d, want %d: %s", got.status, c.status, got.body)
			}
			if allow := got.head.Values("Allow"); (c.status == 405) != (len(allow) == 1 && allow[0] == "GET, HEAD") {
				t.Errorf("Allow: %q", allow)
			}
		})
	}
	t.Run("HTTP/1.0 without a host", func(t *testing.T) {
		conn, r := listening(t, s)
		_, _ = io.WriteString(conn, "GET //b/v1/items HTTP/1.0\r\n\r\n")
		if got := readAnswer(t, r, "GET"); got.status != 404 {
			t.Error(got.status)
		}
	})
}
