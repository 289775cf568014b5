package edge

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/internal/boottime"
	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/limiter"
	"listedge/metrics"
	"listedge/origin/apikey"
)

const (
	// aKey is well-formed; no database knows it.
	aKey = "lk_00000000000000000000000000000000000iqUEf"
	// theTarget is the page of hitServer, and thePage is a request for it, without its end.
	theTarget = "/v1/items?limit=20&sort=name&type=goods&stock=low"
	thePage   = "GET " + theTarget + " HTTP/1.1\r\nHost: a\r\nX-API-Key: " + aKey + "\r\n"
)

// hitServer answers from memory alone: a function returns its keys, and its one page, of
// one row, is already stored.
func hitServer(t testing.TB, row string) (*Server, *fasthttp.RequestCtx) {
	t.Helper()
	s, ctx, _ := hitServerWith(t, row)
	return s, ctx
}

func hitServerWith(t testing.TB, row string) (*Server, *fasthttp.RequestCtx, *metrics.Registry) {
	t.Helper()
	registry := metrics.New("test", "")
	key := []byte(aKey)
	hash, ok := apikey.HashOf(key)
	if !ok {
		t.Fatal("the test's key has a wrong checksum")
	}
	pages := newPages()
	k := apikey.Key{ID: uuid.New(), Workspace: uuid.New(), Tenant: listtest.ID(7), Scopes: 1<<listtest.Items.Number | 1<<listtest.Contacts.Number,
		Limit: apikey.Limit{Set: true, Rate: 1e6, Burst: 1e6}, WorkspaceLimit: apikey.Limit{Set: true, Rate: 1e6, Burst: 1e6}}
	s := serverOf(t, list.BuiltIn(), pages, registry.Edge, func(context.Context, []apikey.Hash, string) (map[apikey.Hash]apikey.Key, error) {
		return map[apikey.Hash]apikey.Key{hash: k}, nil
	})
	ctx := &fasthttp.RequestCtx{}
	ctx.Init2(newConn(&wire{}), nil, false)
	ctx.Request.SetRequestURI(theTarget)
	ctx.Request.Header.Set("X-API-Key", string(key))

	q := page.Query{List: listtest.Items, Tenant: k.Tenant, Limit: 20, Order: listtest.ByName, Match: listtest.Goods | listtest.Low}
	fillWith(t, pages, q, row)
	if first := answerTo(t, s, ctx); !strings.HasPrefix(first.Header("Cache-Status"), "listedge; hit; detail=ttl; proof-ms=") {
		t.Fatalf("no hit: %+v", first)
	}
	return s, ctx, registry
}

// theRead is what origins of tests read.
var theRead atomic.Pointer[page.Read]

type anOrigin struct{}

func (anOrigin) HasStandbys() bool { return false }
func (anOrigin) Fetch(context.Context, page.Query, string) (page.Read, error) {
	return *theRead.Load(), nil
}
func (anOrigin) FetchFromStandby(context.Context, page.Query, changefeed.Proof) (page.Read, error) {
	return page.Read{}, page.ErrUnavailable
}
func (anOrigin) Verify(context.Context, page.Query, string) (page.Read, error) {
	return page.Read{}, page.ErrOverloaded
}
func (anOrigin) FetchRows(context.Context, page.Query, []string, string) (page.Read, error) {
	return *theRead.Load(), nil
}

// newPages makes a cache that has no page yet.
func newPages() *cache.Cache {
	return must(cache.New(cache.Options{Origin: anOrigin{}, Memory: 64 << 20, TTL: time.Hour, MaxStale: time.Hour, FillTimeout: time.Second,
		Clock: boottime.New()}))
}

// fillWith stores a page that has one row for the query.
func fillWith(t testing.TB, pages *cache.Cache, q page.Query, row string) *cache.Entry {
	t.Helper()
	return fillWithRows(t, pages, q, rowOf(row))
}

func fillWithRows(t testing.TB, pages *cache.Cache, q page.Query, rows ...list.Row) *cache.Entry {
	t.Helper()
	theRead.Store(&page.Read{Rows: rows, End: true})
	return must(pages.Forward(&q, time.Now(), func() {})).Entry
}

// rowOf returns a row that is shown as the text, which need not be JSON. It replaces the text of another
// row's encoding, where its length follows the rest.
func rowOf(text string) list.Row {
	row := listtest.Item(0)
	b := list.AppendRows(nil, []list.Row{row})
	places := b[len(b)-row.Size()+len(row.Key()) : len(b)-row.TextSize()]
	head := bytes.TrimSuffix(b[:len(b)-row.Size()+len(row.Key())], binary.AppendUvarint(nil, uint64(row.Size())))
	b = append(binary.AppendUvarint(bytes.Clone(head), uint64(row.Size()-row.TextSize()+len(text))), places...)
	rows, _, ok := list.ParseRows(append(b, text...))
	if !ok || rows[0].Text() != text {
		panic("the encoding of rows has changed")
	}
	return rows[0]
}

// positionOf is behind the row of a name in the query's list, which is one of the contract.
func positionOf(q *page.Query, name string) list.Position {
	row := listtest.Row(q.List, "id", listtest.ID(1), "created_at", listtest.Instant(1), "name", name)
	return q.List.Position(&row, q.Order)
}

// bodyOf is the body of such a page, up to the request id.
func bodyOf(row string) string {
	return `{"data":[` + row + `],"page":{"hasMore":false,"nextCursor":null}`
}

// entryWith returns an entry with one row.
func entryWith(t testing.TB, row string) *cache.Entry {
	t.Helper()
	pages := newPages()
	defer func() { _ = pages.Close(context.Background()) }()
	return fillWith(t, pages, page.Query{List: listtest.Items, Limit: 1}, row)
}

// serverOf returns a server of these lists and pages, with buckets of its own. It is closed when the test ends.
func serverOf(t testing.TB, lists *list.Set, pages *cache.Cache, counts *metrics.Edge, keys apikey.Lookup) *Server {
	t.Helper()
	limits := limiter.New(limiter.Options{})
	s := New(Options{Lists: lists, Cache: pages, Limiter: limits, Metrics: counts, Logger: slog.New(slog.DiscardHandler), Grace: time.Hour, Lookup: keys})
	t.Cleanup(func() {
		_ = s.Shutdown(context.Background())
		_ = pages.Close(context.Background())
		_ = limits.Close(context.Background())
	})
	return s
}

// served serves on a free port, over TLS or not, until the test ends. The connections that dial opens
// end then, too.
func served(t testing.TB, s *Server, secure *tls.Config) (dial func(testing.TB) net.Conn) {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	address := l.Addr().String()
	if secure != nil {
		l = tls.NewListener(l, secure)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		must(0, s.Shutdown(context.Background()))
		must(0, <-ended)
	})
	return func(t testing.TB) net.Conn {
		t.Helper()
		c := must(net.Dial("tcp", address))
		if secure != nil {
			c = tls.Client(c, &tls.Config{InsecureSkipVerify: true}) // the test's own
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		return c
	}
}

// certificate is the TLS configuration of a server.
func certificate(t testing.TB) *tls.Config {
	t.Helper()
	file, key := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	sandboxtest.Certificate(t, "node", time.Hour, file, key)
	return &tls.Config{Certificates: []tls.Certificate{must(tls.LoadX509KeyPair(file, key))}}
}

// listening serves on a connection. It returns the connection, and a reader of it.
func listening(t testing.TB, s *Server) (*net.TCPConn, *bufio.Reader) {
	t.Helper()
	c := served(t, s, nil)(t)
	return c.(*net.TCPConn), bufio.NewReader(c)
}

// wire is a connection that collects what is written to it.
type wire struct {
	net.Conn
	written []byte
	writes  int
}

func (w *wire) Write(p []byte) (int, error) {
	w.written = append(w.written, p...)
	w.writes++
	return len(p), nil
}

func (w *wire) RemoteAddr() net.Addr { return loopback }

var loopback = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}

// answered is a response as the client reads it.
type answered struct {
	Status int
	Head   http.Header
	Body   string
	Closes bool // the connection
}

func (a answered) Header(name string) string { return a.Head.Get(name) }

// answerTo has the server handle the request and write the response.
func answerTo(t testing.TB, s *Server, ctx *fasthttp.RequestCtx) answered {
	t.Helper()
	w := ctx.Conn().(*conn).Conn.(*wire)
	w.written = w.written[:0]
	serveInto(t, s, ctx, bufio.NewWriterSize(ctx.Conn(), writeBuffer))
	return readAnswer(t, bufio.NewReader(bytes.NewReader(w.written)), string(ctx.Method()))
}

// serveInto does what fasthttp does with a request that it has read.
func serveInto(t testing.TB, s *Server, ctx *fasthttp.RequestCtx, w *bufio.Writer) {
	t.Helper()
	s.handle(ctx)
	ctx.Response.SkipBody = ctx.IsHead()
	must(0, ctx.Response.Write(w))
	must(0, w.Flush())
	ctx.Response.Reset()
}

// headerLines are header lines, each of so many bytes.
func headerLines(n, bytes int) string {
	var all strings.Builder
	for i := range n {
		name := strconv.Itoa(i%10) + ":"
		all.WriteString(name + strings.Repeat("x", bytes-len(name)-len("\r\n")) + "\r\n")
	}
	return all.String()
}

// keyOf authenticates aKey as a request does.
func keyOf(t *testing.T, s *Server) (entry *apikey.Entry[client], lookedUp bool) {
	t.Helper()
	entry = must(s.Keys.Authenticate(time.Now(), []byte(aKey), new(apikey.LastKey), func() bool { lookedUp = true; return false }))
	return entry, lookedUp
}
