package main

import (
	"cmp"
	"context"
	"log/slog"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"listedge/cmd/listedge/node"
	"listedge/internal/list"
)

type serveCommand struct {
	node.ListenFlags
	node.TLSFlags
	DatabaseFlags
	ReplicationFlag
	ListsFlag
	node.Flags
	PrintConfig printConfig `help:"Print the settings in effect, without secrets, and end." env:"-"`
}

// Run runs one node until ctx ends.
func (c *serveCommand) Run(ctx context.Context, t *terminal, flags *kong.Context) error {
	public, private, err := node.Listen(c.ListenFlags)
	if err != nil {
		return err
	}
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE) // which would end the process: SIGPIPE, when the reader of the log is gone
	log := node.NewLog(t.log, c.Flags)
	slog.SetDefault(slog.New(log)) // for libraries that log by themselves, which would wait for standard error
	o := node.Options{Flags: c.Flags, TLSFlags: c.TLSFlags, Settings: settingsInEffect(flags), Log: log,
		Public: public, Private: private, DatabaseURL: c.DatabaseURL, ReplicationURL: cmp.Or(c.ReplicationURL, c.DatabaseURL)}
	err = o.AwaitLists(ctx, func(ctx context.Context) (*list.Set, error) { return c.Resolve(ctx, c.DatabaseURL) })
	if ctx.Err() != nil {
		return nil // stopped while it waited
	}
	if err != nil {
		return err
	}
	n, err := newNode(ctx, o)
	if err != nil {
		return err // which ends the process
	}
	if !collectorPaceIsSet() {
		node.PaceCollector(int64(node.GarbageShare * float64(c.CacheMemory)))
	}
	return n.Serve(ctx)
}
