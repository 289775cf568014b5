package node

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"listedge/edge/admin"
	"listedge/internal/fleet"
	"listedge/internal/list"
	"listedge/internal/remedy"
	"listedge/origin/postgres"
)

const (
	// listsInterval is the time between two attempts to resolve lists.
	listsInterval = 2 * time.Second
	// listsTimeout bounds one of them.
	listsTimeout = 10 * time.Second
	// listsReport is after how many of them the log says again what the node waits for.
	listsReport = 5
)

// AwaitLists gives the node its lists. A description is resolved by the catalogue of Postgres, so it waits until that answers. While
// it waits the node lives and is not ready: the admin listener and the log say why, and the public listener is closed. Errors: the
// description does not fit the catalogue, a setting with which the node will never start, and ctx has ended.
func (o *Options) AwaitLists(ctx context.Context, resolve func(context.Context) (*list.Set, error)) (err error) {
	var why atomic.Pointer[admin.Readiness]
	end := func() error { return nil } // of the wait
	for attempts := 0; ; attempts++ {
		attempt, cancel := context.WithTimeout(ctx, listsTimeout)
		o.Lists, err = resolve(attempt)
		cancel()
		if err == nil || ctx.Err() != nil || errors.As(err, new(SettingError)) || errors.Is(err, postgres.ErrParameter) {
			return errors.Join(err, end())
		}
		reason, todo := remedy.Explain(err)
		if attempts%listsReport == 0 {
			slog.New(o.Log).Warn("waits for Postgres, whose catalogue has the tables of --lists", "error", reason, "remedy", todo)
		}
		if why.Swap(&admin.Readiness{Checks: map[string]string{"lists": "wait for Postgres: " + reason}}) == nil {
			end = o.sayNotReady(func() admin.Readiness { return *why.Load() })
		}
		fleet.Pause(ctx, listsInterval)
	}
}

// sayNotReady answers on the admin listener that the node is not ready, and refuses connections to the public one, until end.
func (o *Options) sayNotReady(why func() admin.Readiness) (end func() error) {
	address := o.Public.Addr().String()
	o.Public.Close()
	server := admin.NewWaitingServer(adminNames(o.Settings), why, slog.NewLogLogger(o.Log, slog.LevelWarn))
	lent, served := lentListener{o.Private.(*net.TCPListener)}, make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(lent)
	}()
	return func() (err error) {
		server.Close()
		<-served
		_ = lent.SetDeadline(time.Time{})
		o.Public, err = listen("--listen", address)
		return err
	}
}

// lentListener is a listener that stays open when the server that has it closes it.
type lentListener struct{ *net.TCPListener }

// Close makes Accept return.
func (l lentListener) Close() error { return l.SetDeadline(time.Now()) }
