// Package tracing tells an OpenTelemetry collector of requests, once they have
// been answered: a request notes when its steps began and how long they took,
// which costs it a few readings of the clock, and knows nothing of spans.
//
//	request ──► Request{steps} ──► spans ──► queue (bounded; full = dropped) ──► collector, OTLP over HTTP
//
// Nobody waits for the collector but Close.
package tracing

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
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
)

// Tracer sends spans.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// Request is one that was answered and is to be told of.
type Request struct {
	Took       time.Duration
	Status     int
	Attributes []attribute.KeyValue
	Steps      []Step

	tracer trace.Tracer
	ctx    context.Context // has root
	root   trace.Span
	began  time.Time
}

// Step is a part of a request.
type Step struct {
	Name   string
	Began  time.Time // zero = the request did not take it
	Took   time.Duration
	Within int // index of the step it is a part of, which comes before it; -1 = of none
}

// Text and Bool are attributes of a request.
func Text(name, value string) attribute.KeyValue      { return attribute.String(name, value) }
func Bool(name string, value bool) attribute.KeyValue { return attribute.Bool(name, value) }

// New makes a tracer that is configured by OpenTelemetry's own environment
// variables: where to send to, with which headers, what to sample, how much to
// queue. version is the service's.
func New(ctx context.Context, version string, logger *slog.Logger) (*Tracer, error) {
	described, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "listedge"), attribute.String("service.version", version)),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("describe this node for tracing: %w", err)
	}
	otel.SetLogger(logr.New(complaints{logger})) // its own writes headers and URLs to standard error
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("trace exporter: %w", err)
	}
	p := sdk.NewTracerProvider(sdk.WithResource(described), sdk.WithIDGenerator(ids{}),
		sdk.WithBatcher(&telling{SpanExporter: exporter, logger: logger}))
	return &Tracer{p, p.Tracer("listedge")}, nil
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

// Caller is the trace that a request says it is part of, by its headers
// traceparent and tracestate (W3C); empty or malformed = of none.
type Caller struct {
	Parent, State []byte
	// Trusted: the request becomes part of the caller's trace, and is sampled as
	// the caller says. Else it begins a trace of its own with a link to the
	// caller's, and the sampler decides as if there was no caller: not even the
	// caller's trace id may be taken over, since samplers go by it.
	Trusted bool
}

// maxState is how long a tracestate may be, in bytes: as much as W3C has
// everybody pass on. Spans keep it, so a longer one is left out.
const maxState = 512

// Request returns one that began then, or nil where it is not of the sample.
func (t *Tracer) Request(name string, began time.Time, caller Caller) *Request {
	ctx := context.Background()
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(began)}
	if len(caller.Parent) > 0 {
		headers := propagation.MapCarrier{"traceparent": string(caller.Parent)}
		if caller.Trusted && len(caller.State) <= maxState {
			headers["tracestate"] = string(caller.State)
		}
		called := propagation.TraceContext{}.Extract(ctx, headers)
		if caller.Trusted {
			ctx = called
		} else if link := trace.LinkFromContext(called); link.SpanContext.IsValid() {
			options = append(options, trace.WithLinks(link))
		}
	}
	ctx, root := t.tracer.Start(ctx, name, options...)
	if !root.IsRecording() {
		return nil
	}
	return &Request{tracer: t.tracer, ctx: ctx, root: root, began: began}
}

// Send queues the request's spans, or drops them where the queue is full. It
// does not wait.
func (r *Request) Send() {
	r.root.SetAttributes(r.Attributes...)
	r.root.SetAttributes(attribute.Int("http.response.status_code", r.Status))
	if r.Status >= 500 {
		r.root.SetStatus(codes.Error, "")
	}
	inside := make([]context.Context, len(r.Steps))
	for i, s := range r.Steps {
		parent := r.ctx
		if s.Within >= 0 {
			parent = inside[s.Within]
		}
		inside[i] = parent
		if s.Began.IsZero() {
			continue
		}
		var span trace.Span
		inside[i], span = r.tracer.Start(parent, s.Name, trace.WithTimestamp(s.Began))
		span.End(trace.WithTimestamp(s.Began.Add(s.Took)))
	}
	r.root.End(trace.WithTimestamp(r.began.Add(r.Took)))
}

// ids makes random ids without a lock that all requests would meet at.
type ids struct{}

func (g ids) NewIDs(ctx context.Context) (t trace.TraceID, s trace.SpanID) {
	for !t.IsValid() {
		binary.LittleEndian.PutUint64(t[:8], rand.Uint64())
		binary.LittleEndian.PutUint64(t[8:], rand.Uint64())
	}
	return t, g.NewSpanID(ctx, t)
}

func (ids) NewSpanID(context.Context, trace.TraceID) (s trace.SpanID) {
	for !s.IsValid() {
		binary.LittleEndian.PutUint64(s[:], rand.Uint64())
	}
	return s
}

// complaints logs what the library says of itself, without the values that it
// quotes: headers and URLs hold secrets.
type complaints struct{ logger *slog.Logger }

func (complaints) Init(logr.RuntimeInfo)            {}
func (complaints) Enabled(int) bool                 { return false }
func (complaints) Info(int, string, ...any)         {}
func (c complaints) WithValues(...any) logr.LogSink { return c }
func (c complaints) WithName(string) logr.LogSink   { return c }

// Error is what logr calls for an error. What it is about is not told.
func (c complaints) Error(_ error, message string, _ ...any) {
	c.logger.Warn("a setting of tracing (OTEL_…) cannot be used", "what", message)
}

// telling is an exporter that logs once that its collector fails, and once that
// it is back.
type telling struct {
	sdk.SpanExporter
	logger *slog.Logger
	failed atomic.Bool
}

// ExportSpans hands the spans on. That they could not be sent ends here.
func (t *telling) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := t.SpanExporter.ExportSpans(ctx, spans)
	if failed := err != nil; t.failed.Swap(failed) != failed {
		if failed {
			t.logger.Warn("traces are dropped: the collector does not take them", "error", err)
		} else {
			t.logger.Info("again: traces are sent")
		}
	}
	return nil
}
