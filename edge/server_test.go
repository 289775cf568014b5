package edge

import (
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"listedge/cache"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/metrics"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2") /* ends by itself within 10 s */)
}

var eventually = sandboxtest.Eventually

func scrape(t *testing.T, s *metrics.Registry) string {
	t.Helper()
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

func TestEveryResponseIsCountedOnce(t *testing.T) {
	s, _, registry := hitServerWith(t, "")
	ask := asking(t, s)
	before := scrape(t, registry)
	ask(t, "GET", thePage[len("GET "):])
	ask(t, "GET", thePage[len("GET "):]+"If-None-Match: "+cache.TagOf([]byte(bodyOf(""))).String()+"\r\n")
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
