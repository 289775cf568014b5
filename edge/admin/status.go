package admin

import (
	_ "embed"
	"net/http"

	"listedge/edge"
)

// The status page shows one node, live. It is one file without a build step and
// loads nothing from elsewhere: it must work when nothing else does.
//
// The page reads /metrics, so that it shows the numbers that Prometheus stores, by the
// same names. It computes rates and quantiles from two readings, so that the node keeps
// no state for it.
//
//go:embed status.html
var statusPage []byte

// The runbook is deploy/RUNBOOK.md as a web page, so that an operator can open it on the
// node. A test of deploy makes runbook.html.
//
//go:embed runbook.html
var runbookPage []byte

// servePage answers with a page that loads nothing from elsewhere.
func servePage(page []byte) http.HandlerFunc {
	policy := edge.PagePolicy(page, "")
	return func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", policy)
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache")
		_, _ = w.Write(page)
	}
}
