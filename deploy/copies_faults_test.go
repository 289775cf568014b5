package deploy_test

import (
	"crypto/tls"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// between is a server between a client and a node. It notes the requests and
// may answer them itself.
type between struct {
	*httptest.Server

	mu       sync.Mutex // guards what follows
	asked    []asked
	answered []http.Header // of the node
	// answer is called before a request is passed on, and may answer it.
	answer func(n int, w http.ResponseWriter) (answered bool)
	cut    func(n int) bool // whether the node's answer is cut off
}

// asked is a request that a client has sent.
type asked struct {
	target string
	at     time.Time
}

func startBetween(t *testing.T, f *fleet) *between {
	t.Helper()
	b := new(between)
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			t.Errorf("a client does without gzip: %q", r.Header.Get("Accept-Encoding"))
		}
		b.mu.Lock()
		n, answer, cut := len(b.asked), b.answer, b.cut
		b.asked = append(b.asked, asked{r.URL.RequestURI(), time.Now()})
		b.mu.Unlock()
		if answer != nil && answer(n, w) {
			return
		}
		forward, err := http.NewRequestWithContext(r.Context(), r.Method, "http://"+f.nodes[0].public+r.URL.RequestURI(), nil)
		if err != nil {
			t.Error(err)
			return
		}
		forward.Header = r.Header.Clone()
		response, body, err := inTime(forward)
		if err != nil {
			t.Error(err)
			return
		}
		b.mu.Lock()
		b.answered = append(b.answered, response.Header)
		b.mu.Unlock()
		for name, values := range response.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(response.StatusCode)
		if cut != nil && cut(n) {
			_, _ = w.Write(body[:len(body)/2])
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write(body)
	}))
	t.Cleanup(b.Close)
	return b
}

// requests returns the requests since its last call.
func (b *between) requests() []asked {
	b.mu.Lock()
	defer b.mu.Unlock()
	requests := b.asked
	b.asked = nil
	return requests
}

// answers returns the header of each answer of the node since its last call.
func (b *between) answers() []http.Header {
	b.mu.Lock()
	defer b.mu.Unlock()
	answers := b.answered
	b.answered = nil
	return answers
}

// refuse answers as the service does.
func refuse(w http.ResponseWriter, status int, code, retryAfter string) bool {
	w.Header().Set("Retry-After", retryAfter)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, `{"error":{"code":"`+code+`","message":"not now"},"requestId":"r-1"}`)
	return true
}

// survives: a page that fails is asked for again, as soon as the service wants it.
func survives(t *testing.T, f *fleet, start starter) {
	list := newWatchedList(t, f, 30)
	between := startBetween(t, f)
	walk := start(t, between.URL, list.key, 5)
	list.awaitVisible()
	between.answer = func(n int, w http.ResponseWriter) bool {
		switch n {
		case 1:
			return refuse(w, http.StatusTooManyRequests, "RATE_LIMITED", "1")
		case 3:
			return refuse(w, http.StatusServiceUnavailable, "SERVICE_UNAVAILABLE", "1")
		case 7:
			w.WriteHeader(http.StatusBadGateway) // something in front of the service
			return true
		case 9:
			return refuse(w, http.StatusTooManyRequests, "PLAN_LIMIT_REACHED", "1000000")
		}
		return false
	}
	between.cut = func(n int) bool { return n == 5 }

	stopped := walk(t)
	if p := stopped.Problem; p == nil || p.Status != 429 || p.Code != "PLAN_LIMIT_REACHED" || p.RetryAfter != 1000000 || p.RequestID != "r-1" {
		t.Errorf("a used up quota: %+v", p)
	}
	if len(stopped.Rows) != 0 {
		t.Errorf("%d rows are in the copy before a round has ended", len(stopped.Rows))
	}
	done := walk(t)
	if !reflect.DeepEqual(done.byID(t), list.rows(t)) {
		t.Errorf("the copy is not the list: %d rows", len(done.Rows))
	}
	requests := between.requests()
	if len(requests) != 11 { // six pages, and five that went wrong
		t.Fatalf("%d requests: %v", len(requests), requests)
	}
	for i, r := range requests[1:] {
		again, wrong := r.target == requests[i].target, map[int]bool{1: true, 3: true, 5: true, 7: true, 9: true}[i]
		if again != wrong {
			t.Errorf("request %d is for %s, and the one before for %s", i+1, r.target, requests[i].target)
		}
		if waited := r.at.Sub(requests[i].at); (i == 1 || i == 3) && waited < 900*time.Millisecond {
			t.Errorf("Retry-After says 1 s, and the client waited %s", waited)
		}
	}

	between.cut = nil

	// What waiting does not mend ends the call at once, and the next one begins anew.
	between.answer = func(n int, w http.ResponseWriter) bool {
		return n == 1 && refuse(w, http.StatusBadRequest, "VALIDATION_ERROR", "")
	}
	if p := walk(t).Problem; p == nil || p.Status != 400 || p.Code != "VALIDATION_ERROR" {
		t.Errorf("a refused request: %+v", p)
	}
	if got := len(between.requests()); got != 2 {
		t.Errorf("%d requests, of which the second was refused", got)
	}
	between.answer = nil
	if r := walk(t); r.Requests != 6 || r.Unchanged != 6 || len(between.requests()) != 6 {
		t.Errorf("the round after it: %d requests, %d unchanged", r.Requests, r.Unchanged)
	}

	// A row that is read twice, because it moved meanwhile, is as it was read last.
	between.answer = func(n int, _ http.ResponseWriter) bool {
		if n == 3 {
			list.change(t, "UPDATE items SET name = 'moved', created_at = '1990-01-01' WHERE id = $1", list.seeded[0])
			list.awaitVisible()
		}
		return false
	}
	if row := walk(t).byID(t)[list.seeded[0]]; row.Name != "moved" {
		t.Errorf("a row that moved is in the copy as %q", row.Name)
	}
	between.answer = nil
	between.requests()

	if p := start(t, between.URL, "none", 100)(t).Problem; p == nil || p.Status != 401 || p.Code != "UNAUTHORIZED" {
		t.Errorf("a wrong key: %+v", p)
	}
	if got := len(between.requests()); got != 1 {
		t.Errorf("a wrong key is sent %d times", got)
	}
}

// noticesWrongAddresses: a client does not ask again where asking again cannot help, and takes
// its key nowhere else.
func noticesWrongAddresses(t *testing.T, start starter) {
	answers := func(answer http.HandlerFunc) (s *httptest.Server, asked *atomic.Int64) {
		asked = new(atomic.Int64)
		s = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			answer(w, r)
		}))
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			asked.Add(1)
			return nil, nil
		}}
		t.Cleanup(s.Close)
		return s, asked
	}
	text := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
	}
	html, htmlAsked := answers(text("<!DOCTYPE html>"))
	other, otherAsked := answers(text("{}"))
	secure, secureAsked := answers(text("{}"))
	moved, movedAsked := answers(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, html.URL, http.StatusFound) })
	html.Start()
	other.Start()
	secure.StartTLS()
	moved.Start()
	for _, c := range []struct {
		name, address string
		status        int
		asked         *atomic.Int64
		times         int64
	}{
		{"no scheme", "localhost:8080", 0, new(atomic.Int64), 0},
		{"no host", "https://", 0, new(atomic.Int64), 0},
		{"a redirect", moved.URL, http.StatusFound, movedAsked, 1},
		{"a page of HTML, to which the redirect leads", html.URL, http.StatusOK, htmlAsked, 1},
		{"another service", other.URL, http.StatusOK, otherAsked, 1},
		{"an unknown certificate", secure.URL, 0, secureAsked, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			if p := start(t, c.address, "a key", 5)(t).Problem; p == nil || p.Status != c.status {
				t.Errorf("%+v, want status %d", p, c.status)
			}
			if n := c.asked.Load(); n != c.times {
				t.Errorf("it was asked %d times, want %d", n, c.times)
			}
		})
	}
}

// A round can be cancelled while it waits to ask again.
func TestTypeScriptCanBeCancelled(t *testing.T) {
	t.Parallel()
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusServiceUnavailable, "SERVICE_UNAVAILABLE", "20")
	}))
	defer busy.Close()
	if r := typeScriptKeeper(t, "CANCEL=3000")(t, busy.URL, "a key", 5)(t); !r.Cancelled {
		t.Errorf("%+v", r)
	}
}
