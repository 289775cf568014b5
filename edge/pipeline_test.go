package edge

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
	"listedge/metrics"
	"listedge/origin/apikey"
)

// spoken is a connection on which the client sends chunks: each Read gets one.
type spoken struct {
	net.Conn
	chunks [][]byte
	before func() // called before each Read; nil = nothing
	end    error  // of the Read behind the last chunk; nil = io.EOF

	written []byte
	writeBy time.Time // the deadline; zero = none was set
}

func (w *spoken) Read(p []byte) (int, error) {
	if w.before != nil {
		w.before()
	}
	if len(w.chunks) == 0 {
		return 0, cmp.Or(w.end, io.EOF)
	}
	n := copy(p, w.chunks[0])
	if w.chunks[0] = w.chunks[0][n:]; len(w.chunks[0]) == 0 {
		w.chunks = w.chunks[1:]
	}
	return n, nil
}

// Write fails without a deadline: a client that reads nothing would keep the response for ever.
func (w *spoken) Write(p []byte) (int, error) {
	if w.writeBy.IsZero() {
		return 0, os.ErrDeadlineExceeded
	}
	w.written = append(w.written, p...)
	return len(p), nil
}

func (w *spoken) SetReadDeadline(time.Time) error    { return nil }
func (w *spoken) SetWriteDeadline(t time.Time) error { w.writeBy = t; return nil }
func (w *spoken) Close() error                       { return nil }
func (w *spoken) RemoteAddr() net.Addr               { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// converse has the server answer the chunks on one connection.
func converse(s *Server, w *spoken) *bufio.Reader {
	_ = s.http.ServeConn(newConn(w)) // its error is about the last request
	return bufio.NewReader(bytes.NewReader(w.written))
}

// Behind a load balancer, requests with different keys share a connection, and even a
// segment. Each gets the page of its own key.
func TestPipelinedRequestsGetTheirOwnKeysPage(t *testing.T) {
	pages := newPages()
	keys, texts := map[apikey.Hash]apikey.Key{}, [2]string{}
	for i := range texts {
		texts[i] = apikey.Generate()
		hash, _ := apikey.HashOf([]byte(texts[i]))
		k := apikey.Key{ID: uuid.New(), Workspace: uuid.New(), Tenant: listtest.ID(i), Scopes: 1 << listtest.Items.Number,
			Limit: apikey.Limit{Set: true, Rate: 1e6, Burst: 1e6}}
		keys[hash] = k
		q := page.Query{List: listtest.Items, Tenant: k.Tenant, Limit: 50}
		fillWith(t, pages, q, `"workspace of `+texts[i]+`"`)
	}
	s := serverOf(t, list.BuiltIn(), pages, metrics.New("test", "").Edge, func(context.Context, []apikey.Hash, string) (map[apikey.Hash]apikey.Key, error) {
		return keys, nil
	})
	of := func(key int) []byte {
		return []byte("GET /v1/items HTTP/1.1\r\nHost: a\r\nX-API-Key: " + texts[key] + "\r\n\r\n")
	}
	both := append(of(0), of(1)...)
	for cut := range both {
		chunks := [][]byte{of(0), bytes.Clone(both), of(1), of(0), bytes.Clone(both[:cut]), bytes.Clone(both[cut:])}
		r := converse(s, &spoken{chunks: chunks})
		for n, want := range []int{0, 0, 1, 1, 0, 0, 1} {
			if got := readAnswer(t, r, "GET"); !strings.Contains(got.Body, texts[want]) {
				t.Fatalf("cut at %d, answer %d: %d %s, want that of %s", cut, n+1, got.Status, got.Body, texts[want])
			}
		}
	}
}

// A panic ends its request and not the connection.
func TestAConnectionOutlivesAPanic(t *testing.T) {
	s, _ := hitServer(t, "")
	pages, reads := s.Cache, 0
	request := []byte(thePage + "\r\n")
	r := converse(s, &spoken{chunks: [][]byte{request, request, request}, before: func() {
		if reads++; reads == 2 {
			s.Cache = nil
		} else {
			s.Cache = pages
		}
	}})
	for i, want := range []int{200, 500, 200} {
		if got := readAnswer(t, r, "GET"); got.Status != want || strings.Contains(got.Body, `"INTERNAL_ERROR"`) != (want == 500) {
			t.Errorf("request %d: %+v", i+1, got)
		}
	}
}
