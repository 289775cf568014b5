package edge

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"listedge/cache"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/metrics"
	"listedge/origin/apikey"
	"listedge/origin/usage"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2") /* ends by itself within 10 s */)
}

// eventually waits until the condition is true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	sandboxtest.Within(t, time.Minute, what, ok)
}

func scrape(t *testing.T, s *metrics.Registry) string {
	t.Helper()
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

func TestEveryResponseIsCountedOnce(t *testing.T) {
	s, ctx, registry := hitServerWith(t, `{"data":[]`)
	before := scrape(t, registry)
	answerTo(t, s, ctx)
	ctx.Request.Header.Set("If-None-Match", cache.TagOf([]byte(`{"data":[]`)).String())
	answerTo(t, s, ctx)
	after := scrape(t, registry)
	for series, want := range map[string]int{
		`listedge_http_requests_total{route="items",status="200"}`:                           1,
		`listedge_http_requests_total{route="items",status="304"}`:                           1,
		`listedge_http_request_duration_seconds_count{outcome="memory",route="items"}`:       1,
		`listedge_http_request_duration_seconds_count{outcome="not_modified",route="items"}`: 1,
		`listedge_cache_requests_total{tier="memory"}`:                                       2,
		`listedge_cache_collapsed_total`:                                                     0,
		`listedge_http_request_duration_seconds_count{outcome="error",route="items"}`:        0,
	} {
		if got := value(t, after, series) - value(t, before, series); got != want {
			t.Errorf("%s grew by %d, want %d", series, got, want)
		}
	}
}

func value(t *testing.T, scraped, series string) int {
	t.Helper()
	for line := range strings.Lines(scraped) {
		if v, ok := strings.CutPrefix(line, series+" "); ok {
			n := 0
			for _, c := range strings.TrimSpace(v) {
				n = n*10 + int(c-'0')
			}
			return n
		}
	}
	return 0 // nothing was counted yet
}

// An exchange must not pass anything of one request to the next.
func TestAnExchangeKeepsNothingOfTheLastRequest(t *testing.T) {
	s, ctx, _ := hitServerWith(t, `{"data":[]`)
	x := begin(ctx)
	x.client, x.cost, x.id = &client{usage: s.Usage.Counter(usage.Key{})}, oneToken, []byte("other")
	x.query.Search, x.result.Entry = "other", &cache.Entry{}
	s.finish(x)
	y := begin(ctx)
	if y.client != nil || y.cost != notLimited || string(y.id) == "other" || y.query.Search != "" || y.result.Entry != nil || y.outcome != metrics.OutcomeOther {
		t.Errorf("%+v", y)
	}
}

// keyOf authenticates aKey as a request does.
func keyOf(t *testing.T, s *Server) (entry *apikey.Entry[client], lookedUp bool) {
	t.Helper()
	entry = must(s.Keys.Authenticate([]byte(aKey), func() bool { lookedUp = true; return false }))
	return entry, lookedUp
}
