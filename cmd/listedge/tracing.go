package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"listedge/internal/tracing"
)

// traceStop bounds sending the last traces: a collector that hangs does not
// keep a node from stopping.
const traceStop = 2 * time.Second

// openTracer makes a tracer where OpenTelemetry's environment variables name a
// collector, else none. The other OTEL_ variables are the library's to read.
func openTracer(ctx context.Context, logger *slog.Logger) (*tracing.Tracer, error) {
	endpoint := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	if endpoint == "" || strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || os.Getenv("OTEL_TRACES_EXPORTER") == "none" {
		return nil, nil
	}
	if p := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL")); p != "" && p != "http/protobuf" {
		return nil, usageError{fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL: traces are sent by http/protobuf, not by %s", p)}
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"} {
		if u, err := url.Parse(os.Getenv(name)); os.Getenv(name) != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
			return nil, usageError{fmt.Errorf("%s: not an http:// or https:// URL", name)}
		}
	}
	return tracing.New(ctx, version, logger)
}

func (n *node) closeTracer() {
	ctx, cancel := context.WithTimeout(context.Background(), traceStop)
	defer cancel()
	if err := n.tracer.Close(ctx); err != nil {
		n.logger.Warn("the last traces were not sent", "error", err)
	}
}
