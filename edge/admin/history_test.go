package admin

import (
	"testing"
	"testing/synctest"
	"time"

	"context"

	"listedge/internal/boottime/boottimetest"
	"listedge/internal/lists"
	"listedge/metrics"
)

func TestHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		edge := metrics.New("", "").Edge
		h := NewHistory(func() Reading {
			t := edge.Totals()
			return Reading{Totals: t, ProofAge: 20 * time.Millisecond, Queries: 2 * t.Requests, Lookups: 3 * t.Requests, Memory: 7}
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); h.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		boottimetest.Pass(historyInterval / 2)
		for range 50 {
			edge.Answered(metrics.RouteOf(lists.Items), metrics.OutcomeMemory, 200, 20*time.Microsecond)
			edge.LookedUp(metrics.TierMemory, false)
			edge.Answered(metrics.RouteOf(lists.Items), metrics.OutcomeLimited, 429, time.Microsecond)
		}
		edge.Answered(metrics.RouteOf(lists.Items), metrics.OutcomeError, 503, time.Second)
		boottimetest.Pass(historyInterval)
		p := h.After(0)
		if len(p) != 1 || p[0].Requests != 101/5. || p[0].Refused != 10 || p[0].Failed != .2 || *p[0].Hits != 1 || *p[0].P99 < 15e-6 || *p[0].P99 > 25e-6 || *p[0].Proof != .02 ||
			p[0].Pages != 10 || p[0].Queries != 202/5. || p[0].Lookups != 303/5. || p[0].Memory != 7 {
			t.Errorf("%+v", p)
		}
		if _, by := h.Latest(); by["memory"].P50 == 0 || by["all"] != by["memory"] {
			t.Errorf("%v", by)
		}
		boottimetest.Pass(historyInterval)
		if p := h.After(1); len(p) != 1 || p[0].Requests != 0 || p[0].Hits != nil || p[0].P50 != nil {
			t.Errorf("without requests: %+v", p)
		}
		boottimetest.Pass(2 * time.Hour)
		p = h.After(0)
		if len(p) != historyPoints || p[len(p)-1].N-p[0].N != historyPoints-1 || p[len(p)-1].At-p[0].At != 3595 {
			t.Errorf("after two hours: %d points, from %+v to %+v", len(p), p[0], p[len(p)-1])
		}
		if again := h.After(1e9); len(again) != historyPoints {
			t.Errorf("to a page that knew the node before its restart: %d points", len(again))
		}
	})
}
