package edge

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/origin"
)

// Whatever clients send and whatever goes wrong, the journal stays within its
// bound. Each case fills the rings of all sheets; requests, those of their kind.
func TestTheJournalIsBoundedInEveryField(t *testing.T) {
	long, unknown := strings.Repeat("x", 12<<10), unknownParameters(2000)
	for _, c := range []struct {
		name    string
		request func(i int) string       // its URI, or
		answer  func(i int, x *exchange) // what became of it
	}{
		{name: "path", request: func(i int) string { return fmt.Sprint("/nowhere/", i, long) }},
		{name: "many unknown parameters", request: func(i int) string { return fmt.Sprint("/v1/items?p", i, unknown) }},
		{name: "long unknown parameter", request: func(i int) string { return fmt.Sprint("/v1/items?p", i, long) }},
		{name: "unreadable parameter", request: func(i int) string { return fmt.Sprint("/v1/items?p", i, "%", long) }},
		{name: "long value", request: func(i int) string { return fmt.Sprint("/v1/items?search=", i, long) }},
		{name: "cause", answer: func(i int, x *exchange) {
			x.failed = failure{problem: originAway, cause: fmt.Errorf("%d: %w", i, errors.New(strings.Repeat("c", 20<<10)))}
		}},
		{name: "details", answer: func(i int, x *exchange) {
			x.failed = failure{problem: invalid, faults: parseQuery(&x.query, []byte(fmt.Sprint("p", i, unknownParameters(100))), nil)}
		}},
		{name: "page that stood in", answer: func(i int, x *exchange) {
			x.page = cache.Result{Entry: cache.NewEntry(make([]byte, 20<<10), ""), Source: cache.Memory,
				Err: errors.New(fmt.Sprint(i, strings.Repeat("e", 20<<10))), Times: &cache.Times{}}
		}},
		{name: "key that the keyring forgets", answer: func(i int, x *exchange) {
			x.known = &origin.KnownKey[client]{Key: origin.Key{ID: uuid.New(), Workspace: uuid.New(), Run: strings.Repeat("r", 20<<10+i)}}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _ := hitServer(t, `{"data":[]`)
			all := len(s.journal.sheets) * entriesPerRing
			if c.answer != nil {
				all *= int(kinds)
			}
			for i := range all {
				ctx := &fasthttp.RequestCtx{}
				ctx.Init2(newConn(&wire{}, s), nil, false)
				for _, name := range []string{"X-Forwarded-For", "Traceparent", "Tracestate", "User-Agent"} {
					ctx.Request.Header.Set(name, long)
				}
				ctx.Request.Header.Set("X-API-Key", aKey)
				ctx.Request.Header.Set("X-Request-Id", fmt.Sprintf("%0*d", maxRequestID, i))
				if c.request != nil {
					ctx.Request.SetRequestURI(c.request(i))
					if got := answerTo(t, s, ctx); got.status < 400 || got.status >= 500 {
						t.Fatal(got.status)
					}
					continue
				}
				x := begin(ctx)
				s.identify(x)
				c.answer(i, x)
				s.remember(x, kind(i/len(s.journal.sheets))%kinds, 503, time.Second)
				x.end()
			}
			if id := fmt.Sprintf("%0*d", maxRequestID, all-1); len(s.Records(id)) != 1 {
				t.Fatal("the last request is not remembered")
			}
			took := int64(unsafe.Sizeof(s.journal)) + keptAlive(func() { s.journal = journal{} })
			runtime.KeepAlive(s) // or all of the server would count
			if t.Logf("%d bytes", took); took > journalBytes {
				t.Errorf("the journal takes %d bytes, more than %d", took, journalBytes)
			}
		})
	}
}

// keptAlive returns how many bytes of the heap only that kept alive which drop
// lets go of.
func keptAlive(drop func()) int64 {
	inUse := func() (least int64) {
		for last := int64(math.MaxInt64); ; last = least { // what pools and finalizers kept goes one collection after the other
			var m runtime.MemStats
			runtime.GC()
			runtime.GC()
			runtime.ReadMemStats(&m)
			if least = int64(m.HeapAlloc); least > last-4<<10 {
				return least
			}
		}
	}
	before := inUse()
	drop()
	return before - inUse()
}

// unknownParameters are n that no collection has.
func unknownParameters(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "&u%d", i)
	}
	return b.String()
}
