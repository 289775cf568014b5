package main

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"listedge/internal/tracing"
)

type serveCommand struct {
	ListenFlags
	TLSFlags
	DatabaseFlags
	ReplicationFlag
	NodeFlags
	PrintConfig printConfig `help:"Print the settings in effect, without secrets, and end." env:"-"`
}

// Run serves until ctx ends.
func (c *serveCommand) Run(ctx context.Context, t *terminal, flags *kong.Context) error {
	public, private, err := listenBoth(c.ListenFlags)
	if err != nil {
		return err
	}
	log := newLog(t, c.NodeFlags)
	logger := slog.New(log)
	if public, err = c.secure(public, logger); err != nil {
		private.Close()
		return err
	}
	n, err := newNode(ctx, c.NodeFlags, databaseURLs{c.DatabaseURL, cmp.Or(c.ReplicationURL, c.DatabaseURL)}, settingsInEffect(flags), log, public, private)
	if err != nil {
		public.Close()
		private.Close()
		return err
	}
	defer ignoreHangups(logger)()
	defer paceCollector(int64(garbageShare * float64(c.CacheMemory)))()
	return n.serve(ctx)
}

// ignoreHangups makes the process ignore SIGHUP, which would end it, and logs that
// settings are not read again.
func ignoreHangups(logger *slog.Logger) (stop func()) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range hangups {
			logger.Warn("SIGHUP changes nothing: settings are read at the start; restart the node to change them")
		}
	}()
	return func() {
		signal.Stop(hangups)
		close(hangups)
		<-done
	}
}

// traceCloseTimeout bounds sending the last traces, so that a hung collector does not
// delay the end of the process.
const traceCloseTimeout = 2 * time.Second

// openTracer makes a tracer if the environment names a collector.
func openTracer(ctx context.Context, logger *slog.Logger) (*tracing.Tracer, error) {
	if enabled, err := tracingEnabled(); !enabled || err != nil {
		return nil, err
	}
	return tracing.New(ctx, version, logger)
}

func (n *node) closeTracer() {
	ctx, cancel := context.WithTimeout(context.Background(), traceCloseTimeout)
	defer cancel()
	if err := n.tracer.Close(ctx); err != nil {
		n.logger.Warn("the last traces were not sent", "error", err)
	}
}
