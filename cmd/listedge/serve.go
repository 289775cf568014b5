package main

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"listedge/cmd/listedge/node"
)

type serveCommand struct {
	node.ListenFlags
	node.TLSFlags
	DatabaseFlags
	ReplicationFlag
	node.Flags
	PrintConfig printConfig `help:"Print the settings in effect, without secrets, and end." env:"-"`
}

// Run serves until ctx ends.
func (c *serveCommand) Run(ctx context.Context, t *terminal, flags *kong.Context) error {
	public, private, err := node.Listen(c.ListenFlags)
	if err != nil {
		return err
	}
	log := node.NewLog(t.err, c.Flags)
	logger := slog.New(log)
	if public, err = c.Secure(public); err != nil {
		private.Close()
		return err
	}
	n, err := newNode(ctx, node.Options{Flags: c.Flags, NotifySocket: notifySocket(), Log: log, Public: public, Private: private,
		Database: node.DatabaseURLs{Pages: c.DatabaseURL, Changes: cmp.Or(c.ReplicationURL, c.DatabaseURL)}}, flags)
	if err != nil {
		public.Close()
		private.Close()
		return err
	}
	defer ignoreHangups(logger)()
	if !collectorPaceIsSet() {
		defer node.PaceCollector(int64(node.GarbageShare * float64(c.CacheMemory)))()
	}
	return n.Serve(ctx)
}

// newNode adds what the program and the environment say.
func newNode(ctx context.Context, o node.Options, flags *kong.Context) (_ *node.Node, err error) {
	o.Settings, o.Version, o.Revision = settingsInEffect(flags), version, builtFrom()
	if o.Traces, err = tracingEnabled(); err != nil {
		return nil, err
	}
	return node.New(ctx, o)
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
