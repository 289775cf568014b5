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

//go:embed status.html
var statusPage []byte

var statusPolicy = edge.PagePolicy(statusPage, "")

func serveStatus(w http.ResponseWriter, _ *http.Request) { servePage(w, statusPage, statusPolicy) }
