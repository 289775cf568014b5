package edge

import (
	_ "embed"
	"net/http"
)

// The status page shows one node, live, to whoever reaches the admin listener.
// It is one file without a build step and loads nothing from elsewhere: it has
// to work on the day when nothing else does.
//
// It reads /metrics, rather than an endpoint of its own: what it shows then is
// what Prometheus stores, by the same names, and no number has two homes.
// Rates and quantiles are differences of two readings, taken by the page, so
// that the node keeps nothing for it.

//go:embed status.html
var statusPage []byte

var statusPolicy = ownPolicy + "; img-src data:; script-src" + inline(statusPage, "script") + "; style-src" + inline(statusPage, "style")

func serveStatus(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", statusPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	_, _ = w.Write(statusPage)
}
