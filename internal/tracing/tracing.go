// Package tracing sends traces of answered requests to an OpenTelemetry collector. While a
// request runs, it only records when its parts began and how long they took. Spans are made
// from that after the response.
//
//	request ──► times of its parts ──► spans ──► queue (bounded; full = dropped) ──► collector, OTLP over HTTP
//
// Only Close waits for the collector.
package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"
)

// Tracer sends spans.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// Span is a part of a request, or all of it.
type Span struct {
	tracer trace.Tracer
	ctx    context.Context // with span
	span   trace.Span
	began  time.Time
}

// How spans are queued and sent. They are constants because the library takes any number from
// OTEL_BSP_…, also one for which it panics, spins or exhausts the memory.
const (
	maxQueue      = 2048 // spans
	maxBatch      = 512  // spans
	sendInterval  = time.Second
	exportTimeout = 30 * time.Second // longer than the exporter's own, OTEL_EXPORTER_OTLP_TIMEOUT
)

// New makes a tracer. OpenTelemetry's environment variables configure it: where to send to, with
// which headers, what to sample. What cannot be used is a warning, because whether a node starts
// must not depend on its traces. version is the service's.
func New(ctx context.Context, version string, logger *slog.Logger) *Tracer {
	log := errorLog{logger}
	otel.SetLogger(logr.New(log)) // its own writes headers and URLs to standard error
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Error(err, err.Error()) }))
	described, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "listedge"), attribute.String("service.version", version)),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv())
	if err != nil { // the attributes that are good are used
		log.Error(err, err.Error())
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		log.Error(err, err.Error())
		return nil
	}
	p := sdk.NewTracerProvider(sdk.WithResource(described), sdk.WithBatcher(exporter,
		sdk.WithMaxQueueSize(maxQueue), sdk.WithMaxExportBatchSize(maxBatch), sdk.WithBatchTimeout(sendInterval), sdk.WithExportTimeout(exportTimeout)))
	failure := rate.Sometimes{Interval: time.Minute}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		failure.Do(func() { logger.Warn("traces are dropped: the collector does not accept them", "error", err) })
	}))
	return &Tracer{p, p.Tracer("listedge")}
}

// Close sends what is queued, until ctx ends.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("close the tracer: %w", err)
	}
	return nil
}

// maxState is the longest tracestate that is used, in bytes: what W3C requires
// everybody to pass on. Spans keep it in memory.
const maxState = 512

// Request starts the trace of a request. It returns nil if the request is not sampled. parent
// and state are the headers traceparent and tracestate (W3C) of a caller whose trace the request
// becomes a part of, and who decides whether it is sampled; empty or malformed = none.
func (t *Tracer) Request(name string, began time.Time, parent, state []byte) *Span {
	headers := propagation.MapCarrier{"traceparent": string(parent)}
	if len(state) <= maxState {
		headers["tracestate"] = string(state)
	}
	ctx, root := t.tracer.Start(propagation.TraceContext{}.Extract(context.Background(), headers), name,
		trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(began))
	if !root.IsRecording() {
		return nil
	}
	return &Span{t.tracer, ctx, root, began}
}

// Part adds a part that has ended. A part that did not happen began at the zero time.
func (s *Span) Part(name string, began time.Time, took time.Duration) *Span {
	part := &Span{tracer: s.tracer, ctx: s.ctx, began: began}
	if !began.IsZero() {
		part.ctx, part.span = s.tracer.Start(s.ctx, name, trace.WithTimestamp(began))
		part.span.End(trace.WithTimestamp(began.Add(took)))
	}
	return part
}

// End queues the request's spans, or drops them if the queue is full. It does not wait. Empty
// attributes are left out.
func (s *Span) End(took time.Duration, status int, attributes map[string]any) {
	s.span.SetAttributes(attribute.Int("http.response.status_code", status))
	for name, value := range attributes {
		if !reflect.ValueOf(value).IsZero() {
			s.span.SetAttributes(attribute.String(name, fmt.Sprint(value)))
		}
	}
	if status >= 500 {
		s.span.SetStatus(codes.Error, "")
	}
	s.span.End(trace.WithTimestamp(s.began.Add(took)))
}

// errorLog logs the library's own errors, without the values that they quote: headers and
// URLs may contain secrets.
type errorLog struct{ logger *slog.Logger }

func (errorLog) Init(logr.RuntimeInfo)            {}
func (errorLog) Enabled(int) bool                 { return false }
func (errorLog) Info(int, string, ...any)         {}
func (c errorLog) WithValues(...any) logr.LogSink { return c }
func (c errorLog) WithName(string) logr.LogSink   { return c }

// Error is what logr calls for an error.
func (c errorLog) Error(_ error, message string, _ ...any) {
	c.logger.Warn("a setting of tracing (OTEL_…) cannot be used", "what", message)
}
