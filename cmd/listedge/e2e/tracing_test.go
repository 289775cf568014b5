package e2e

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"listedge/internal/sandbox/sandboxtest"
)

// receiver is a collector: OTLP over HTTP.
type receiver struct {
	env []string      // names it to a node
	mu  sync.Mutex    // guards got
	got []*spans.Span // of requests
	raw strings.Builder
}

func startReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, asked *http.Request) {
		body, err := io.ReadAll(asked.Body)
		var export collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &export)
		}
		if err != nil || asked.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", asked.URL, err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.raw.Write(body)
		for _, resource := range export.ResourceSpans {
			for _, scope := range resource.ScopeSpans {
				r.got = append(r.got, scope.Spans...)
			}
		}
	}))
	t.Cleanup(server.Close)
	r.env = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + server.URL}
	return r
}

// startTraced starts a node with these variables and waits until it is ready.
func startTraced(t *testing.T, env []string, databaseURL string, args ...string) *testNode {
	t.Helper()
	n := launchProgram(t, listedge, env, databaseURL, args...)
	n.awaitReady(t)
	return n
}

// trace awaits a trace of this many spans. It returns the path of each span: the names of its
// ancestors and its own.
func (r *receiver) trace(t *testing.T, id string, want int) map[string]*spans.Span {
	t.Helper()
	byID := map[string]*spans.Span{}
	within(t, patience, fmt.Sprintf("%d spans of %s", want, id), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, s := range r.got {
			if hex.EncodeToString(s.TraceId) == id {
				byID[string(s.SpanId)] = s
			}
		}
		return len(byID) >= want
	})
	paths := map[string]*spans.Span{}
	for _, s := range byID {
		path := s.Name
		for up := byID[string(s.ParentSpanId)]; up != nil; up = byID[string(up.ParentSpanId)] {
			path = up.Name + " > " + path
		}
		paths[path] = s
	}
	return paths
}

func TestARequestIsOneTrace(t *testing.T) {
	t.Parallel()
	r := startReceiver(t)
	url := database(t)
	_, key := workspaceWithKey(t, url)
	n := startTraced(t, r.env, url, "--redis-url", sandboxtest.Redis(t).URL(), "--freshness-bound", "0", "--cache-ttl", "1h")

	const trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	n.get(t, "/v1/items?search=Secret", key, "traceparent: 00-"+trace+"-"+parent+"-01", "X-Request-Id: traced").page(t)
	got := r.trace(t, trace, 7)
	want := map[string]bool{"GET items": true, "GET items > key": true, "GET items > limit": true, "GET items > memory": true,
		"GET items > redis": true, "GET items > fill": true, "GET items > fill > query": true}
	names := map[string]bool{}
	for path, s := range got {
		names[path] = true
		root := got["GET items"]
		if s.EndTimeUnixNano < s.StartTimeUnixNano || s.StartTimeUnixNano < root.StartTimeUnixNano || s.EndTimeUnixNano > root.EndTimeUnixNano {
			t.Errorf("%s from %d to %d is not in its request, %d to %d", path, s.StartTimeUnixNano, s.EndTimeUnixNano, root.StartTimeUnixNano, root.EndTimeUnixNano)
		}
	}
	if !maps.Equal(names, want) {
		t.Fatalf("got %v", names)
	}
	root := got["GET items"]
	if hex.EncodeToString(root.ParentSpanId) != parent || root.Kind != spans.Span_SPAN_KIND_SERVER {
		t.Errorf("%v", root)
	}
	attributes := map[string]string{}
	for _, a := range root.Attributes {
		attributes[a.Key] = a.Value.GetStringValue()
	}
	if attributes["listedge.request_id"] != "traced" || attributes["listedge.cache_status"] != "listedge; fwd=uri-miss" || attributes["listedge.key_id"] == "" {
		t.Errorf("%v", attributes)
	}

	// A hit has no spans of Redis or Postgres. A request that its sender does not sample has no trace.
	const hit, unsampled = "1af7651916cd43dd8448eb211c80319c", "2af7651916cd43dd8448eb211c80319c"
	n.get(t, "/v1/items?search=Secret", key, "traceparent: 00-"+unsampled+"-"+parent+"-00")
	n.get(t, "/v1/items?search=Secret", key, "traceparent: 00-"+hit+"-"+parent+"-01")
	if got := r.trace(t, hit, 4); len(got) != 4 || got["GET items > memory"] == nil {
		t.Errorf("a hit: %v", got)
	}
	n.stop() // sends what is queued
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.got {
		if hex.EncodeToString(s.TraceId) == unsampled {
			t.Errorf("not to be sampled: %v", s)
		}
	}
	if raw := r.raw.String(); strings.Contains(raw, key[9:]) || strings.Contains(raw, "Secret") || !strings.Contains(raw, "listedge") {
		t.Error("a key or a search is in the spans, or no name of the service")
	}
}

// A node follows a sender's sampling decision only if the sender has a key or is a trusted
// proxy. For all other requests the node's own sampler decides.
func TestOnlyThoseWhoAreTrustedDecideWhatIsSampled(t *testing.T) {
	const (
		caller = "3af7651916cd43dd8448eb211c80319c"
		parent = "00-" + caller + "-b7ad6b7169203331-"
		none   = "4af7651916cd43dd0000000000000000" // by its last half a ratio chooses it, however small
	)
	state := func(size int) string {
		return "tracestate: a=" + strings.Repeat("x", 252) + ",b=" + strings.Repeat("y", size-257)
	}
	url := database(t)
	_, key := workspaceWithKey(t, url)
	for _, c := range []struct {
		name, ratio, path, key, proxies string
		headers                         []string
		inside, own                     bool // in the caller's trace, or in one of its own
		state                           int  // bytes
	}{
		{name: "nobody, sampled", path: "/nowhere", headers: []string{"traceparent: " + parent + "01", state(512)}},
		{name: "nobody, with a trace id that a ratio chooses", ratio: "0.000001", path: "/nowhere",
			headers: []string{"traceparent: 00-" + none + "-b7ad6b7169203331-01"}},
		{name: "nobody, not sampled", ratio: "1", path: "/nowhere", headers: []string{"traceparent: " + parent + "00", state(512)}, own: true},
		{name: "a wrong key", path: "/v1/items", key: "lk_wrong", headers: []string{"traceparent: " + parent + "01"}},
		{name: "a key", path: "/v1/items", key: key, headers: []string{"traceparent: " + parent + "01", state(512)}, inside: true, state: 512},
		{name: "a key, with a long state", path: "/v1/items", key: key, headers: []string{"traceparent: " + parent + "01", state(513)}, inside: true},
		{name: "a key, not sampled", ratio: "1", path: "/v1/items", key: key, headers: []string{"traceparent: " + parent + "00"}},
		{name: "a proxy", path: "/nowhere", proxies: "127.0.0.0/8", headers: []string{"traceparent: " + parent + "01"}, inside: true},
		{name: "another's proxy", path: "/nowhere", proxies: "10.0.0.0/8", headers: []string{"traceparent: " + parent + "01", "X-Forwarded-For: 10.1.2.3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := startReceiver(t)
			n := startTraced(t, append(r.env, "OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG="+cmp.Or(c.ratio, "0")), url,
				"--trusted-proxies", c.proxies)
			n.get(t, c.path, c.key, append(c.headers, "X-Request-Id: asked")...)
			n.stop() // sends what is queued
			var inside bool
			for _, s := range r.got {
				if hex.EncodeToString(s.TraceId) == caller {
					inside = true
					if len(s.TraceState) != c.state {
						t.Errorf("a state of %d bytes, want %d", len(s.TraceState), c.state)
					}
				}
			}
			if inside != c.inside || len(r.got) > 0 != (inside || c.own) {
				t.Errorf("in the caller's trace: %v; %d spans", inside, len(r.got))
			}
		})
	}
}

func TestACollectorThatHangsCostsRequestsNothing(t *testing.T) {
	t.Parallel()
	asked, release := make(chan struct{}, 1000), make(chan struct{})
	hanging := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{}; <-release }))
	defer hanging.Close()
	defer close(release)
	url := database(t)
	_, key := workspaceWithKey(t, url)
	n := startTraced(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + hanging.URL,
		"OTEL_EXPORTER_OTLP_TIMEOUT=3600000"}, url) // milliseconds: the exporter gives up nothing
	n.get(t, "/v1/items", key)
	<-asked          // from here on it hangs
	for range 1000 { // more spans than the queue holds
		n.get(t, "/v1/items", key).page(t)
	}
	if code := n.stop(); code != exitFine { // while it still hangs
		t.Errorf("exit %d: %s", code, n.err.String())
	}
	if !strings.Contains(n.err.String(), "the last traces were not sent") {
		t.Errorf("nothing is said of what was not sent: %s", n.err.String())
	}
}

// Operators inject OTEL_ variables into all pods. One that cannot be used is a warning, without
// the value of what may be a secret, and the node starts.
func TestAWrongSettingOfTracingIsAWarning(t *testing.T) {
	t.Parallel()
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"
	for variable, warning := range map[string]string{
		"OTEL_EXPORTER_OTLP_PROTOCOL=grpc":                           `"protocol":"grpc"`,
		"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http":                    "traces are sent by http/protobuf",
		"OTEL_TRACES_EXPORTER=jaeger":                                `"exporter":"jaeger"`,
		"OTEL_TRACES_SAMPLER=x-ray":                                  "unsupported sampler: x-ray",
		"OTEL_RESOURCE_ATTRIBUTES=team":                              "missing value",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://u:s3cret@h:x":            "requests are not traced",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=u:s3cret@h:4317":         "requests are not traced",
		"OTEL_EXPORTER_OTLP_HEADERS=s3cret":                          "parse headers",
		"OTEL_EXPORTER_OTLP_CERTIFICATE=/none/s3cret":                "read tls ca cert file",
		"OTEL_EXPORTER_OTLP_TIMEOUT=s3cret":                          "parse duration",
		"OTEL_TRACES_SAMPLER_ARG=9 OTEL_TRACES_SAMPLER=traceidratio": "invalid trace ID ratio",
		"OTEL_BSP_MAX_QUEUE_SIZE=-1":                                 "how traces are queued and sent is fixed, whatever OTEL_BSP_",
		"OTEL_BSP_SCHEDULE_DELAY=9223372036854775807":                "how traces are queued and sent is fixed, whatever OTEL_BSP_",
		"OTEL_EXPORTER_OTLP_PROTOCOL=http/json":                      "",
		"OTEL_TRACES_EXPORTER=console,otlp":                          "",
		"OTEL_SDK_DISABLED=true":                                     "",
	} {
		t.Run(variable, func(t *testing.T) {
			n := launchProgram(t, listedge, append([]string{endpoint}, strings.Fields(variable)...), "postgres://127.0.0.1:1/none")
			if log := n.err.String(); strings.Contains(log, "OTEL_") != (warning != "") || !strings.Contains(log, warning) || strings.Contains(log, "s3cret") {
				t.Errorf("%s, want %s", log, warning)
			}
			if code := n.stop(); code != exitFine {
				t.Errorf("exit %d: %s", code, n.err.String())
			}
		})
	}
}

// Go's HTTP client logs a response to no request by itself, and would do so to standard error.
func TestWhatLibrariesLogIsALineOfTheLog(t *testing.T) {
	t.Parallel()
	confused := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, asked *http.Request) {
		_, _ = io.Copy(io.Discard, asked.Body)
		conn, _, err := w.(http.Hijacker).Hijack()
		must(err)
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n")
	}))
	defer confused.Close()
	url := database(t)
	_, key := workspaceWithKey(t, url)
	n := startTraced(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + confused.URL}, url)
	within(t, patience, "it is logged", func() bool {
		n.get(t, "/v1/items", key)
		return strings.Contains(n.err.String(), "Unsolicited response")
	})
	n.stop()
	for line := range strings.Lines(n.err.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("not a line of the log: %s", line)
		}
	}
}
