package main

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

type serveCommand struct {
	listenFlags
	tlsFlags
	databaseFlags
	replicationFlag
	nodeFlags
	PrintConfig printConfig `help:"Print the settings in effect, without secrets, and end." env:"-"`
}

// Validate is explicit because each of the embedded has one.
func (c *serveCommand) Validate() error {
	return cmp.Or(c.listenFlags.Validate(), c.tlsFlags.Validate(), c.databaseFlags.Validate(), c.replicationFlag.Validate(), c.nodeFlags.Validate())
}

// Run serves until ctx ends.
func (c *serveCommand) Run(ctx context.Context, t *terminal, flags *kong.Context) error {
	public, private, err := listenBoth(c.listenFlags)
	if err != nil {
		return err
	}
	log := newLog(t, c.nodeFlags)
	logger := slog.New(log)
	if public, err = c.secure(public, logger); err != nil {
		private.Close()
		return err
	}
	n, err := newNode(ctx, c.nodeFlags, databaseURLs{c.DatabaseURL, cmp.Or(c.ReplicationURL, c.DatabaseURL)}, settingsInEffect(flags), log, public, private)
	if err != nil {
		public.Close()
		private.Close()
		return err
	}
	defer answerHangups(logger)()
	defer paceCollector(int64(garbageShare * float64(c.CacheMemory)))()
	return n.serve(ctx)
}

// answerHangups tells whoever sends SIGHUP, hoping for a reload, that there is
// none. Without it the signal would end the process.
func answerHangups(logger *slog.Logger) (stop func()) {
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
