package edge

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/metrics"
	"listedge/origin"
	"listedge/stream"
)

// spoken is the client's half of a conversation: a Read gets one chunk of it.
type spoken struct {
	wire
	chunks   [][]byte
	deadline time.Time // of the present Read
	closed   int
}

func (w *spoken) Read(p []byte) (int, error) {
	if len(w.chunks) == 0 {
		return 0, io.EOF
	}
	n := copy(p, w.chunks[0])
	if w.chunks[0] = w.chunks[0][n:]; len(w.chunks[0]) == 0 {
		w.chunks = w.chunks[1:]
	}
	return n, nil
}

func (w *spoken) SetReadDeadline(t time.Time) error  { w.deadline = t; return nil }
func (w *spoken) SetWriteDeadline(t time.Time) error { return nil }

func (w *spoken) Close() error {
	w.closed++
	return nil
}

// converse has the server answer the chunks on a connection, and returns what
// it answered and how many requests fasthttp had to read for it.
func converse(t *testing.T, s *Server, chunks [][]byte, prepare func(*conn)) (answers []byte, read int) {
	t.Helper()
	w := &spoken{chunks: chunks}
	c := newConn(w, s)
	c.idPrefix = []byte("connection-")
	prepare(c)
	s.http.Handler = func(ctx *fasthttp.RequestCtx) {
		read++
		s.handle(ctx)
	}
	_ = s.http.ServeConn(c) // says what was wrong with the last request
	return w.written, read
}

func TestARepeatedRequestIsNotReadAgain(t *testing.T) {
	body := `{"data":[` + strings.Repeat("x", 3000) + `]`
	s, _ := hitServer(t, body)
	etag := cache.NewPage([]byte(body), "", time.Now()).ETag.String()
	for _, c := range []struct {
		name, lines string
		status      int
	}{
		{"identity", "", 200},
		{"gzip", "Accept-Encoding: br, gzip\r\nUser-Agent: test\r\n", 200},
		{"not modified", "If-None-Match: " + etag + "\r\n", 304},
	} {
		request := []byte(thePage + c.lines + "\r\n")
		answers, read := converse(t, s, [][]byte{request, request, request, request}, func(c *conn) { c.repeats.second = 1 })
		if read != 1 {
			t.Errorf("%s: fasthttp read %d of 4", c.name, read)
		}
		r := bufio.NewReader(bytes.NewReader(answers))
		var first http.Header
		for i := range 4 {
			got := readAnswer(t, r, "GET")
			if id := fmt.Sprint("connection-", i+1); got.status != c.status || got.header("X-Request-Id") != id {
				t.Fatalf("%s, %d: %+v", c.name, i, got)
			}
			if date, err := http.ParseTime(got.header("Date")); err != nil || time.Since(date).Abs() > time.Minute {
				t.Errorf("%s: Date: %s", c.name, got.header("Date"))
			}
			if i == 0 {
				first = got.head
			}
			if len(first) != len(got.head) {
				t.Errorf("%s: %v, and then %v", c.name, first, got.head)
			}
		}
	}
}

// What differs from request to request in answers that are the same.
var passing = regexp.MustCompile(`Date: [^\r]*|RateLimit[^\r]*|Age: [^\r]*`)

// Whatever a client says, and however it comes in: a connection that
// recognises repeated requests answers it as one that does not, to the byte.
func TestRepeatsAreAnsweredAsIfRead(t *testing.T) {
	body := `{"data":[` + strings.Repeat("x", 500) + `]`
	s, _ := hitServer(t, body)
	etag := cache.NewPage([]byte(body), "", time.Now()).ETag.String()
	const address = "/v1/items?limit=20&sort=name&type=goods&stock=low"
	plain := "Host: a\r\nX-API-Key: " + aKey + "\r\n"
	addresses := []string{"/v1/items?limit=0", "/v1/contacts?limit=20", "/v1/nowhere", "/openapi.json",
		address + "#x", "/v1/items?search=%zz", "http://a" + address, "/" + address, "/v1/items?limit=2\x01", "/v1/items/../items", "/v1/items?search=\xff"}
	lines := []string{strings.NewReplacer("Host", "host", "X-API-Key", "x-api-key").Replace(plain), plain + "If-None-Match: " + etag + "\r\n", plain + "Accept-Encoding: gzip\r\nX-Request-Id: same\r\n",
		plain + "Content-Length: 0\r\n", "Host: a\r\n", plain + "X-API-Key: twice\r\n", plain + "Expect: 100-continue\r\n", plain + "Cache-Control: no-cache\r\n", "X-API-Key: " + aKey + "\r\n"}
	repeated := 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		habit, habitual := r.IntN(12), lines[r.IntN(len(lines))]
		one := func() string {
			head, tail, form := address, " HTTP/1.1\r\n"+plain, r.IntN(40)
			if r.IntN(8) == 0 {
				head = addresses[r.IntN(len(addresses))]
			}
			if r.IntN(8) == 0 {
				tail = " HTTP/1.1\r\n" + lines[r.IntN(len(lines))]
			}
			if r.IntN(3) == 0 {
				form, tail = habit, " HTTP/1.1\r\n"+habitual
			}
			switch smuggled := "GET " + address + " HTTP/1.1\r\n" + plain + "\r\n"; form {
			case 0:
				return "HEAD " + head + tail + "\r\n"
			case 1:
				return fmt.Sprintf("POST %s%sContent-Length: %d\r\n\r\n%s", head, tail, len(smuggled), smuggled)
			case 2:
				return fmt.Sprintf("GET %s%sContent-Length: 1\r\n\r\nx", head, tail)
			case 3:
				return fmt.Sprintf("POST %s%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", head, tail, len(smuggled), smuggled)
			case 4:
				return "\r\nGET " + head + tail + "\r\n"
			case 5:
				return "GET " + head + strings.Replace(tail, "1.1", "1.0", 1) + "Connection: keep-alive\r\n\r\n"
			case 6:
				return "GET " + head + tail + "Connection: close\r\n\r\n"
			case 7:
				return "GET " + head + strings.ReplaceAll(tail, "\r\n", "\n") + "\n"
			}
			return "GET " + head + tail + "\r\n"
		}
		var chunks [][]byte
		var open []byte
		for range 2 + r.IntN(20) {
			open = append(open, one()...)
			if r.IntN(4) == 0 {
				cut := r.IntN(len(open))
				if headed := bytes.LastIndex(open, emptyLine); r.IntN(2) == 0 && headed >= 0 {
					cut = headed + len(emptyLine)
				}
				chunks, open = append(chunks, bytes.Clone(open[:cut])), open[cut:]
			}
			if r.IntN(4) > 0 {
				chunks, open = append(chunks, bytes.Clone(open)), nil
			}
		}
		chunks = append(chunks, open)

		var read [2]int
		var answers [2][]byte
		for i, state := range []func(net.Conn, fasthttp.ConnState){nil, betweenRequests} {
			s.http.ConnState, s.guard = state, newGuard()
			given := make([][]byte, len(chunks))
			for i, c := range chunks {
				given[i] = bytes.Clone(c)
			}
			answers[i], read[i] = converse(t, s, given, func(c *conn) { c.repeats.between = state != nil })
			answers[i] = passing.ReplaceAll(answers[i], nil)
		}
		if repeated += read[0] - read[1]; !bytes.Equal(answers[0], answers[1]) {
			same := 0
			for same < min(len(answers[0]), len(answers[1])) && answers[0][same] == answers[1][same] {
				same++
			}
			t.Fatalf("seed %d: asked\n%q\nafter %d bytes, fasthttp alone:\n%.200q\nwith repeats:\n%.200q", seed, chunks, same, answers[0][same:], answers[1][same:])
		}
	}
	if repeated < 300 {
		t.Errorf("only %d requests were recognised", repeated)
	}
}

// An address that is taken is cut as fasthttp cuts it.
func FuzzAnAddressIsCutAsByFasthttp(f *testing.F) {
	for _, address := range []string{"/v1/items?limit=50", "/v1/items", "/v1/items?a=b?c", "/v1/items?search=http://a/b", "/v1//items?x", "/v1/../docs", "/v1/items;a?b", "/v1/items%3fa?b"} {
		f.Add(address)
	}
	f.Fuzz(func(t *testing.T, address string) {
		request := "GET " + address + " HTTP/1.1\r\nHost: a\r\n\r\n"
		path, parameters, lines, ok := splitHead([]byte(request))
		if !ok {
			return
		}
		var read fasthttp.Request
		if err := read.Read(bufio.NewReader(strings.NewReader(request))); err != nil {
			t.Fatalf("%q is taken, and fasthttp says %v", request, err)
		}
		if u := read.URI(); string(path) != string(u.PathOriginal()) || string(parameters) != string(u.QueryString()) || string(lines) != "Host: a\r\n\r\n" {
			t.Errorf("%q: %q and %q, fasthttp has %q and %q", address, path, parameters, u.PathOriginal(), u.QueryString())
		}
	})
}

// A client whose lines never repeat is not studied for ever, one that has
// changed them is at once.
func TestFewLinesAreLearnt(t *testing.T) {
	s, _ := hitServer(t, `{"data":[]`)
	var c *conn
	var chunks [][]byte
	for i := range 1000 {
		chunks = append(chunks, fmt.Appendf(nil, "%sX-Request-Id: r%d\r\n\r\n", thePage, i))
	}
	lessons := map[*known]bool{}
	answers := s.http.ConnState
	s.http.ConnState = func(nc net.Conn, state fasthttp.ConnState) {
		answers(nc, state)
		if c.repeats.known != nil {
			lessons[c.repeats.known] = true
		}
	}
	converse(t, s, chunks, func(made *conn) { c = made })
	if len(lessons) != 10 { // 1, 2, 4 … 512
		t.Errorf("%d of 1,000 were learnt", len(lessons))
	}
	var forms [][]byte
	for i := range 9 {
		forms = append(forms, fmt.Appendf(nil, "%sUser-Agent: %d\r\n\r\n", thePage, i/3))
	}
	if _, read := converse(t, s, forms, func(made *conn) { c = made }); read != 3 {
		t.Errorf("fasthttp read %d of 9 requests in three forms", read)
	}
}

// What a request may not have any more is refused, though it had it before.
func TestARepeatIsLimitedAndRefused(t *testing.T) {
	s, _ := hitServer(t, `{"data":[]`)
	request := []byte(thePage + "\r\n")
	status := func(r *bufio.Reader) int { return readAnswer(t, r, "GET").status }
	answers, _ := converse(t, s, [][]byte{request, request, request}, func(c *conn) {
		c.Conn = &between{spoken: c.Conn.(*spoken), do: map[int]func(){3: func() {
			bucket := s.keyring.Known(mustHash(t), s.keyring.Place([]byte(aKey)), time.Now()).Value.bucket
			policy, err := policyOf(origin.Limit{Set: true, Rate: 0, Burst: 1})
			if err != nil {
				t.Fatal(err)
			}
			bucket.SetPolicy(policy)
		}}}
	})
	r := bufio.NewReader(bytes.NewReader(answers))
	if a, b := status(r), status(r); a != 200 || b != 200 {
		t.Fatalf("%d, %d", a, b)
	}
	if got := readAnswer(t, r, "GET"); got.status != 429 || got.header("Retry-After") == "" || got.header("Content-Type") != "application/json" || !strings.Contains(got.body, rateLimited.code) {
		t.Errorf("a repeat beyond its limit: %+v", got)
	}
}

func mustHash(t *testing.T) origin.KeyHash {
	t.Helper()
	hash, ok := origin.HashKey([]byte(aKey))
	if !ok {
		t.Fatal("no key")
	}
	return hash
}

// between does something before some of the Reads, which count from 1.
type between struct {
	*spoken
	reads int
	do    map[int]func()
}

func (w *between) Read(p []byte) (int, error) {
	w.reads++
	if do := w.do[w.reads]; do != nil {
		do()
	}
	return w.spoken.Read(p)
}

// A defect ends its request, and not the connection.
func TestAPanicInARepeatIsAnswered(t *testing.T) {
	s, _ := hitServer(t, `{"data":[]`)
	pages := s.cache
	request := []byte(thePage + "\r\n")
	answers, read := converse(t, s, [][]byte{request, request, request}, func(c *conn) {
		c.Conn = &between{spoken: c.Conn.(*spoken), do: map[int]func(){2: func() { s.cache = nil }, 3: func() { s.cache = pages }}}
	})
	r := bufio.NewReader(bytes.NewReader(answers))
	for i, want := range []int{200, 500, 200} {
		if got := readAnswer(t, r, "GET"); got.status != want {
			t.Errorf("request %d: %+v", i, got)
		}
	}
	if read != 1 {
		t.Errorf("fasthttp read %d", read)
	}
}

// fasthttp takes a connection for idle that is answering a repeat, and closes
// it when the server shuts down: the answer is whole before that.
func TestAnAnswerIsWholeBeforeItsConnectionCloses(t *testing.T) {
	s, _ := hitServer(t, `{"data":[]`)
	request := []byte(thePage + "\r\n")
	w := &spoken{chunks: [][]byte{request, request, request}}
	c := newConn(w, s)
	var atClose []byte
	c.Conn = &writes{spoken: w, on: 2, do: func() {
		_ = c.Close()
		if w.closed > 0 {
			t.Error("closed within the answer")
		}
	}, closed: func() { atClose = bytes.Clone(w.written) }}
	_ = s.http.ServeConn(c)
	if n := bytes.Count(atClose, []byte(`"requestId"`)); n != 2 || w.closed == 0 {
		t.Errorf("closed %d times, first with %d answers: %q", w.closed, n, atClose)
	}
	if len(w.chunks) != 1 {
		t.Errorf("%d requests are unread", len(w.chunks))
	}
}

// writes does something before a Write, and before the connection closes.
type writes struct {
	*spoken
	on         int
	do, closed func()
}

func (w *writes) Write(p []byte) (int, error) {
	if w.on--; w.on == 0 {
		w.do()
	}
	return w.spoken.Write(p)
}

func (w *writes) Close() error {
	if w.spoken.closed == 0 {
		w.closed()
	}
	return w.spoken.Close()
}

// Who repeats itself is told of a node that is about to end like all others.
func TestARepeatIsToldThatTheNodeEnds(t *testing.T) {
	s, _ := hitServer(t, `{"data":[]`)
	request := []byte(thePage + "\r\n")
	answers, _ := converse(t, s, [][]byte{request, request, request, request}, func(c *conn) {
		c.Conn = &between{spoken: c.Conn.(*spoken), do: map[int]func(){3: s.Drain}}
	})
	if all, told := bytes.Count(answers, []byte("HTTP/1.1 200")), bytes.Count(answers, []byte("Connection: close")); all != 3 || told != 1 {
		t.Errorf("%d answers, %d of them say that the connection closes", all, told)
	}
}

// The wait for the next request is as long behind a repeat.
func TestAQuietConnectionIsGivenUpBehindARepeat(t *testing.T) {
	s, _ := hitServer(t, `{"data":[]`)
	request := []byte(thePage + "\r\n")
	var w *spoken
	converse(t, s, [][]byte{request, request, request}, func(c *conn) {
		w = c.Conn.(*spoken)
		c.Conn = &between{spoken: w, do: map[int]func(){2: func() { c.readBy, c.read.at = time.Now().Add(-time.Hour), time.Time{} }}} // the wait for it was long
	})
	if wait := time.Until(w.deadline); wait < idleTimeout-5*time.Second || wait > idleTimeout+deadlineSlack {
		t.Errorf("the next Read waits %v", wait)
	}
}

func TestEqualInConstantTime(t *testing.T) {
	a := []byte("0123456789abcdefghi")
	for n := range len(a) + 1 {
		if !equalInConstantTime(a[:n], bytes.Clone(a[:n])) {
			t.Errorf("%d bytes differ from themselves", n)
		}
		for i := range n {
			b := bytes.Clone(a[:n])
			b[i] ^= 0x80
			if equalInConstantTime(a[:n], b) {
				t.Errorf("%q is %q", a[:n], b)
			}
		}
		if n < len(a) && equalInConstantTime(a[:n], a) {
			t.Errorf("%d bytes are %d", n, len(a))
		}
	}
}

// Of two requests in one packet, of which the first's head ends in "\r\n\n",
// each is answered with its own key's page, however often they come.
func TestTwoRequestsAreNotLearntAsOne(t *testing.T) {
	pages, err := cache.New(cache.Options{Memory: 64 << 20, TTL: time.Hour, MaxStale: time.Hour, FillTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	keys, texts := map[origin.KeyHash]origin.Key{}, [2]string{}
	for i := range texts {
		texts[i] = origin.NewKey()
		hash, _ := origin.HashKey([]byte(texts[i]))
		k := origin.Key{ID: uuid.New(), Workspace: uuid.New(), Items: true, Limit: origin.Limit{Set: true, Rate: 1e6, Burst: 1e6}}
		keys[hash] = k
		q := origin.Query{Workspace: k.Workspace, Limit: defaultLimit}
		if _, err := pages.Forward(appendPageKey(nil, &q, nil), stream.Pair{}, cache.Fill{Primary: func(context.Context, string) (cache.Filled, error) {
			return cache.Filled{Body: []byte(`{"data":["workspace of ` + texts[i] + `"]`)}, nil
		}}); err != nil {
			t.Fatal(err)
		}
	}
	s := serverOf(t, pages, metrics.New("test", "").Edge, func(context.Context, []origin.KeyHash, string) (map[origin.KeyHash]origin.Key, error) {
		return keys, nil
	})
	of := func(i int, end string) string {
		return "GET /v1/items HTTP/1.1\r\nHost: a\r\nX-API-Key: " + texts[i] + end
	}
	both := []byte(of(0, "\r\n\n") + of(1, "\r\n\r\n"))
	answers, _ := converse(t, s, [][]byte{[]byte(of(0, "\r\n\r\n")), bytes.Clone(both), bytes.Clone(both)}, func(*conn) {})
	r := bufio.NewReader(bytes.NewReader(answers))
	for n, want := range []int{0, 0, 1, 0, 1} {
		if _, err := r.Peek(1); err != nil {
			t.Errorf("answer %d is missing", n+1)
			break
		}
		if got := readAnswer(t, r, "GET"); !bytes.Contains([]byte(got.body), []byte(texts[want])) {
			t.Errorf("answer %d: status %d, X-Request-Id %s, body %s; wanted that of %s", n+1, got.status, got.header("X-Request-Id"), got.body, texts[want])
		}
	}
}
