package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Settings of sessions, by name.
type Settings map[string]string

// SessionSettings are those that every statement of a node depends on.
func SessionSettings(timeout time.Duration) Settings {
	return Settings{
		"search_path":                   Schema,
		"row_security":                  "off", // an error, where rows would silently be left out
		"default_transaction_read_only": "on",
		"default_transaction_isolation": "read committed", // behind the rewrite of a table others find no rows
		"statement_timeout":             strconv.FormatInt(timeout.Milliseconds(), 10),
		// Pages must cost the same on the day before and the day after an
		// ANALYZE: plan once, for no parameter in particular, by index.
		"plan_cache_mode":                 "force_generic_plan",
		"enable_seqscan":                  "off",
		"enable_sort":                     "off",
		"jit":                             "off",
		"max_parallel_workers_per_gather": "0",
	}
}

// pooled is the key in the CustomData of a connection through a pooler.
const pooled = "listedge.pooled"

// Pooled says whether a connection pooler answers on the connection.
func Pooled(conn *pgconn.PgConn) bool { return conn.CustomData()[pooled] != nil }

// apply makes new connections of the config run with the settings.
//
// A statement sets them, because a pooler refuses them as startup parameters. A
// pooler gives its clients process ids of its own: where the id is another,
// nothing is set, because the server connection may be another client's in the
// next transaction and would keep the setting. There each transaction begins
// with Local. It costs a round trip for each connection.
func (s Settings) apply(c *pgconn.Config) {
	c.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		ctx, cancel := context.WithTimeout(ctx, c.ConnectTimeout)
		defer cancel()
		results, err := conn.Exec(ctx, fmt.Sprintf("%s WHERE pg_backend_pid() = %d", s.set(false), conn.PID())).ReadAll()
		if err != nil {
			return err
		}
		if len(results) != 1 || len(results[0].Rows) == 0 {
			conn.CustomData()[pooled] = true
		}
		return nil
	}
}

// Local is a statement that sets them for the transaction that runs it. A
// transaction's default is set for the transaction itself; Postgres refuses an
// isolation that differs from the one that the transaction began with.
func (s Settings) Local() string {
	own := Settings{}
	for name, value := range s {
		own[strings.TrimPrefix(name, "default_")] = value
	}
	return own.set(true)
}

func (s Settings) set(local bool) string {
	var calls []string
	for _, name := range slices.Sorted(maps.Keys(s)) {
		calls = append(calls, fmt.Sprintf("set_config('%s', '%s', %t)", name, s[name], local))
	}
	return "SELECT " + strings.Join(calls, ", ")
}
