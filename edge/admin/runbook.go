package admin

import (
	_ "embed"
	"net/http"

	"listedge/edge"
)

// The runbook is deploy/RUNBOOK.md as a web page, so that an operator can open it on the
// node. A test of deploy makes runbook.html.

//go:embed runbook.html
var runbookPage []byte

var runbookPolicy = edge.PagePolicy(runbookPage, "")

func serveRunbook(w http.ResponseWriter, _ *http.Request) { servePage(w, runbookPage, runbookPolicy) }

// servePage answers with a page that loads nothing from elsewhere.
func servePage(w http.ResponseWriter, page []byte, policy string) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	_, _ = w.Write(page)
}
