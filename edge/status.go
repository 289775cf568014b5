package edge

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
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
var statusPage string

// statusPolicy has the browser run the page's one script and one style sheet,
// known by their hashes, and nothing that has found its way in.
var statusPolicy = "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; " +
	"script-src " + hashOf(statusPage, "script") + "; style-src " + hashOf(statusPage, "style")

// hashOf is the source expression (CSP, 2.3.1) of a page's one element.
func hashOf(page, element string) string {
	_, rest, opened := strings.Cut(page, "<"+element+">")
	text, _, closed := strings.Cut(rest, "</"+element+">")
	if !opened || !closed {
		panic(fmt.Sprintf("BUG: status.html has no <%s>", element))
	}
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

func serveStatus(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", statusPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	_, _ = w.Write([]byte(statusPage))
}
