package node

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
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
	var waiting *http.Server // answers in the place of the node
	for attempts := 0; ; attempts++ {
		attempt, cancel := context.WithTimeout(ctx, listsTimeout)
		o.Lists, err = resolve(attempt)
		cancel()
		if err == nil || ctx.Err() != nil || errors.As(err, new(SettingError)) || errors.Is(err, postgres.ErrParameter) {
			break
		}
		reason, todo := remedy.Explain(err)
		if attempts%listsReport == 0 {
			slog.New(o.Log).Warn("waits for Postgres, whose catalogue has the tables of --lists", "error", reason, "remedy", todo)
		}
		why.Store(&admin.Readiness{Checks: map[string]string{"lists": "wait for Postgres: " + reason}})
		if waiting == nil {
			o.Public.Close()
			waiting = admin.NewWaitingServer(adminNames(o.Settings), func() admin.Readiness { return *why.Load() }, slog.NewLogLogger(o.Log, slog.LevelWarn))
			go func() { _ = waiting.Serve(o.Private) }()
		}
		fleet.Pause(ctx, listsInterval)
	}
	if waiting == nil || err != nil {
		return err
	}
	waiting.Close()
	o.Public, o.Private, err = Listen(ListenFlags{o.Public.Addr().String(), o.Private.Addr().String()})
	return err
}
