package metrics_test

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"listedge/internal/changefeed"
	"listedge/metrics"
	"listedge/origin"
)

// registry is that of a node with two replicas that has had no request.
func registry() *metrics.Registry {
	r := metrics.New("1.0.0", "0123456789")
	pool, err := pgxpool.New(context.Background(), "host=none") // connects to nothing
	if err != nil {
		panic(err)
	}
	pool.Close()
	r.Collect(func() metrics.Snapshot {
		return metrics.Snapshot{Origin: origin.Stats{Pool: pool.Stat()}, Feed: changefeed.Stats{Epoch: "1"}, KeyBreakerOpen: true,
			Ready: true, CertificateExpiry: time.Now(),
			Checks: map[string]bool{"redis": true, "postgres": true, "replica 10.0.0.8:5432": true, "replica 10.0.0.9:5432": true}}
	})
	return r
}

// scraped is /metrics in a format that the scraper accepts.
func scraped(t *testing.T, r *metrics.Registry, accept string) *httptest.ResponseRecorder {
	t.Helper()
	q := httptest.NewRequest("GET", "/metrics", nil)
	q.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, q)
	return w
}

const protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"

var outcomesOfLists = []metrics.Outcome{metrics.OutcomeMemory, metrics.OutcomeRedis, metrics.OutcomeOrigin, metrics.OutcomeStale, metrics.OutcomeBypass,
	metrics.OutcomeNotModified, metrics.OutcomeLimited, metrics.OutcomeError}

// everything is what may happen to requests: outcomes and statuses by route.
func everything(of *metrics.Edge, happen func(*metrics.Route, metrics.Outcome, int)) {
	ofLists := []int{200, 304, 400, 401, 403, 412, 413, 429, 500, 503, 504}
	for _, e := range []struct {
		route    *metrics.Route
		outcomes []metrics.Outcome
		statuses []int
	}{
		{of.List("items"), outcomesOfLists, ofLists},
		{of.List("contacts"), outcomesOfLists, ofLists},
		{of.Route("none"), []metrics.Outcome{metrics.OutcomeLimited, metrics.OutcomeError}, []int{400, 404, 405, 408, 413, 429, 431, 500, 503, 505}},
		{of.Route("docs"), []metrics.Outcome{metrics.OutcomeOther, metrics.OutcomeLimited}, []int{200, 304, 413, 429}},
	} {
		for _, outcome := range e.outcomes {
			for _, status := range e.statuses {
				happen(e.route, outcome, status)
			}
		}
	}
}

// A fleet of a hundred nodes has 40,000 series. If a metric needs more series, another must
// lose some.
func TestANodeHasAtMost400Series(t *testing.T) {
	r := registry()
	r.RedisCalls("pages")
	r.RedisCalls("limits")
	for _, server := range []string{"primary", "10.0.0.8:5432", "10.0.0.9:5432"} {
		for _, outcome := range []string{"ok", "timeout", "failed"} {
			r.Queried(server, outcome, time.Second)
		}
	}
	everything(r.Edge, func(route *metrics.Route, outcome metrics.Outcome, status int) {
		for took := time.Microsecond; took < time.Minute; took *= 3 {
			r.Edge.Answered(route, outcome, status, took)
		}
	})
	lines := 0
	for line := range strings.Lines(scraped(t, r, "text/plain").Body.String()) {
		if !strings.HasPrefix(line, "#") {
			lines++
		}
	}
	if t.Logf("%d series", lines); lines > 400 || lines < 200 {
		t.Errorf("%d series", lines)
	}
}

// find is the histogram of hits of items.
func find(t *testing.T, w *httptest.ResponseRecorder) *dto.Histogram {
	t.Helper()
	decoder := expfmt.NewDecoder(w.Body, expfmt.ResponseFormat(w.Header()))
	for {
		var family dto.MetricFamily
		if err := decoder.Decode(&family); err != nil {
			t.Fatalf("no histogram of hits: %v", err)
		}
		if family.GetName() != "listedge_http_request_duration_seconds" {
			continue
		}
		for _, m := range family.Metric {
			if m.Label[0].GetValue() == "memory" && m.Label[1].GetValue() == "items" {
				return m.Histogram
			}
		}
	}
}

func TestLatencies(t *testing.T) {
	r := registry()
	items := r.Edge.List("items")
	for range 3 {
		r.Edge.Answered(items, metrics.OutcomeMemory, 200, 30*time.Microsecond)
	}
	r.Edge.Answered(items, metrics.OutcomeMemory, 200, 20*time.Millisecond)
	h := find(t, scraped(t, r, protobuf))
	t.Run("protobuf has native buckets", func(t *testing.T) {
		if h.GetSchema() != 2 || h.GetSampleCount() != 4 || len(h.PositiveSpan) != 2 || len(h.PositiveDelta) != 2 || h.PositiveDelta[0] != 3 ||
			h.GetCreatedTimestamp() == nil {
			t.Errorf("%v", h)
		}
	})
	t.Run("and classic ones", func(t *testing.T) {
		var counts []uint64
		for _, b := range h.Bucket {
			counts = append(counts, b.GetCumulativeCount())
		}
		if len(counts) != 3 || counts[0] != 3 || counts[1] != 3 || counts[2] != 4 {
			t.Errorf("counts %v", counts)
		}
	})
}

// The series of a list are there before its first request, so that this one is an increase.
func TestSeriesOfAListBegin(t *testing.T) {
	r := registry()
	r.Edge.Route("docs")
	r.Edge.List("crm-people")
	text := scraped(t, r, "text/plain").Body.String()
	for series, begins := range map[string]bool{
		`listedge_http_requests_total{route="crm-people",status="503"} 0`:                           true,
		`listedge_http_request_duration_seconds_count{outcome="not_modified",route="crm-people"} 0`: true,
		`listedge_http_requests_total{route="docs",status="200"} 0`:                                 false,
	} {
		t.Run(series, func(t *testing.T) {
			if strings.Contains(text, series) != begins {
				t.Errorf("it begins: %v, want %v", !begins, begins)
			}
		})
	}
}

func TestCountingAllocatesNothing(t *testing.T) {
	edge := registry().Edge
	items := edge.List("items")
	if n := testing.AllocsPerRun(1000, func() {
		edge.Answered(items, metrics.OutcomeMemory, 200, 30*time.Microsecond)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
