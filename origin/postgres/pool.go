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
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// ConnectTimeout bounds making a connection, PingTimeout a ping: pgx pings a connection that
	// was idle for a second before it is used, because the network may have lost it without notice.
	ConnectTimeout = 2 * time.Second
	PingTimeout    = time.Second
)

// toPrimary and toStandby choose the server that a pool connects to, if its URL names
// several. Without them a pool for the primary could keep connections to a standby. The
// freshness of its pages would then be judged by a snapshot of the standby, which does not
// say what the standby has replayed.
var (
	toPrimary pgconn.ValidateConnectFunc = pgconn.ValidateConnectTargetSessionAttrsPrimary
	toStandby pgconn.ValidateConnectFunc = pgconn.ValidateConnectTargetSessionAttrsStandby
)

// CheckURL returns why a node could not use the URL of a database; nil if it
// could. It does not connect.
func CheckURL(url string) error {
	_, err := parsePool(url)
	return err
}

func parsePool(url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	return config, checkURL(url, err)
}

// openPool makes a pool of at most connections, of which it keeps idle open. It does not wait
// for one, so an unreachable server is no error here.
func openPool(ctx context.Context, url string, target pgconn.ValidateConnectFunc, connections, idle int, settings Settings) (*pgxpool.Pool, error) {
	config, err := parsePool(url)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	config.MaxConns = int32(connections)
	config.MinIdleConns = int32(idle)
	config.PingTimeout = PingTimeout
	config.ConnConfig.MaxProtocolMessageBodyLen = maxMessage
	prepareConfig(config.ConnConfig, target, settings)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	return pool, nil
}

// Settings of sessions, by name.
type Settings map[string]string

// SessionSettings are the settings that every statement depends on that reads for a node.
func SessionSettings(timeout time.Duration) Settings {
	return Settings{
		"search_path":                   Schema,
		"row_security":                  "off", // an error, where rows would silently be left out
		"default_transaction_read_only": "on",
		"default_transaction_isolation": "read committed", // a higher level finds no rows in a table that was rewritten meanwhile
		"statement_timeout":             strconv.FormatInt(timeout.Milliseconds(), 10),
		// A page must cost the same before and after an ANALYZE: the plan is made once,
		// for any parameters, and uses an index.
		"plan_cache_mode":                 "force_generic_plan",
		"enable_seqscan":                  "off",
		"enable_sort":                     "off",
		"jit":                             "off",
		"max_parallel_workers_per_gather": "0",
	}
}

// WriteSettings are the settings of statements that write, whatever settings the role has.
func WriteSettings(timeout time.Duration) Settings {
	s := SessionSettings(timeout)
	s["default_transaction_read_only"] = "off" // mutation: a read-only role writes nothing
	return s
}

// pooled is the key in the CustomData of a connection through a pooler.
const pooled = "listedge.pooled"

// Pooled says whether a connection pooler answers on the connection.
func Pooled(conn *pgconn.PgConn) bool { return conn.CustomData()[pooled] != nil }

// apply makes new connections of the config use the settings.
//
// A statement sets them, which costs a round trip for each connection: a pooler refuses
// them as startup parameters. The statement sets nothing behind a pooler, which it detects
// by the process id: a pooler reports one of its own. There the server connection may serve
// another client in the next transaction, and would keep the settings. So behind a pooler
// each transaction begins with Local.
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

// Local returns a statement that makes the settings for the transaction that runs it. A default
// of transactions (default_transaction_…) is set as the transaction's own property. Postgres
// refuses an isolation level that differs from the one that the transaction began with.
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
