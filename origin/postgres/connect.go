// Package postgres connects to Postgres: which of several servers a URL means,
// pools, breakers, rows read from the wire, and the kinds of errors.
//
//	URL ──► connection ──► pool ──► breaker ──► statement ──► rows
//	                                                └───────► errors, by kind
//
// It knows nothing of lists, keys and schemas.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"listedge/internal/fleet"
	"listedge/internal/redact"
)

// Schema is where the tables are, whatever search path a role or a database has.
const Schema = "public"

var errUnclear = errors.New("not postgres://user:password@host:port/database; a user or a password has @ : / ? % and blanks as %40 %3A %2F %3F %25 %20")

const (
	// ConnectTimeout bounds looking up a host, and making a connection to it. PingTimeout bounds a
	// ping: pgx pings a connection that was idle for a second before it is used, because the network
	// may have lost it without notice.
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

// ParseURL reads the URL of a database. The driver's error quotes it, so only its reason is kept. A
// URL that can be read in two ways is refused, even if the driver accepts it: a part of the password
// might be taken for the name of a host or a database, and appear in every error.
func ParseURL(url string) (*pgxpool.Config, error) {
	scheme, _, isURL := strings.Cut(url, "://")
	if !redact.IsClear(url) || isURL && scheme != "postgres" && scheme != "postgresql" {
		return nil, errUnclear
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		reason := err.Error()
		if i := strings.LastIndex(reason, "`: "); i >= 0 {
			reason = reason[i+len("`: "):]
		}
		return nil, fmt.Errorf("%s: %s", redact.URL(url), redact.Text(reason, url))
	}
	return config, nil
}

// PrimaryConfig parses a URL for connections that write, or that follow changes. If the URL
// names several servers, they lead to the primary.
func PrimaryConfig(url string) (*pgx.ConnConfig, error) {
	config, err := ParseURL(url)
	if err != nil {
		return nil, err
	}
	prepareConfig(config.ConnConfig, toPrimary, CommandSettings)
	return config.ConnConfig, nil
}

// CommandSettings are the settings of commands and of the follower. jit is off because compiling
// would take longer than what they ask of the catalog.
var CommandSettings = TextSettings.with(Settings{"search_path": Schema, "jit": "off"})

// prepareConfig sets what all connections have in common. If the URL names several servers,
// target chooses one of them, unless the URL itself does (target_session_attrs). A single
// server is not checked here: it may be a primary or a standby.
func prepareConfig(c *pgx.ConnConfig, target pgconn.ValidateConnectFunc, settings Settings) {
	c.ConnectTimeout = ConnectTimeout
	c.LookupFunc = func(ctx context.Context, host string) ([]string, error) { // pgx bounds only the rest
		ctx, cancel := context.WithTimeout(ctx, c.ConnectTimeout)
		defer cancel()
		return net.DefaultResolver.LookupHost(ctx, host)
	}
	c.RuntimeParams["application_name"] = "listedge"
	c.RuntimeParams["timezone"] = "UTC"
	c.RuntimeParams["client_encoding"] = "UTF8" // overrides the setting of the database and of the role
	c.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		ctx, cancel := context.WithTimeout(ctx, c.ConnectTimeout)
		defer cancel()
		return settings.apply(ctx, conn)
	}
	several := slices.ContainsFunc(c.Fallbacks, func(f *pgconn.FallbackConfig) bool { return f.Host != c.Host || f.Port != c.Port })
	if several && c.ValidateConnect == nil {
		c.ValidateConnect = target
	}
}

// Connect opens one ordinary, writing connection. If the URL names a single
// server, it may be a standby.
func Connect(ctx context.Context, url string, timeout time.Duration) (*pgx.Conn, error) {
	config, err := PrimaryConfig(url)
	if err != nil {
		return nil, err
	}
	config.ConnectTimeout = timeout
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // a pooler may forget what is prepared
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", ExplainParameter(err, config))
	}
	return conn, nil
}

// IdentifyAt returns which server and database a URL leads to.
func IdentifyAt(ctx context.Context, url string) (s fleet.Server, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*ConnectTimeout)
	defer cancel()
	conn, err := Connect(ctx, url, ConnectTimeout)
	if err != nil {
		return s, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return Identify(ctx, conn)
}

// CommandTimeout is how long a command waits for a connection: nobody else waits meanwhile.
const CommandTimeout = 10 * time.Second

// ConnectPrimary opens a connection for a command that needs the primary. It returns ErrStandby
// if the server is a standby: Connect does not check a URL that names a single server.
func ConnectPrimary(ctx context.Context, url string) (*pgx.Conn, error) {
	conn, err := Connect(ctx, url, CommandTimeout)
	if err != nil {
		return nil, err
	}
	var standby bool
	err = conn.QueryRow(ctx, `SELECT pg_is_in_recovery()`).Scan(&standby)
	if standby {
		err = fmt.Errorf("%s: %w", conn.PgConn().Conn().RemoteAddr(), ErrStandby)
	}
	if err != nil {
		_ = conn.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return conn, nil
}

// Settings of sessions, by name.
type Settings map[string]string

// TextSettings decide what values look like as texts, which is how statements and the log have them. With them a
// text is exact, and a value has one.
var TextSettings = Settings{
	"DateStyle": "ISO", "TimeZone": "UTC", "IntervalStyle": "postgres", "extra_float_digits": "1", "bytea_output": "hex",
}

// with returns both settings in one.
func (s Settings) with(more Settings) Settings {
	all := maps.Clone(s)
	maps.Copy(all, more)
	return all
}

// SessionSettings are the settings that every statement depends on that reads for a node.
func SessionSettings(timeout time.Duration) Settings {
	return TextSettings.with(Settings{
		"search_path":                   Schema,
		"row_security":                  "off", // an error, where rows would silently be left out
		"gin_fuzzy_search_limit":        "0",   // a search would silently leave rows out, too
		"default_transaction_read_only": "on",
		"default_transaction_isolation": "read committed", // a higher level finds no rows in a table that was rewritten meanwhile
		"statement_timeout":             strconv.FormatInt(timeout.Milliseconds(), 10),
		// A page must cost the same before and after an ANALYZE: the plan is made once,
		// for any parameters, and uses an index.
		"plan_cache_mode":                 "force_generic_plan",
		"enable_seqscan":                  "off",
		"enable_sort":                     "off",
		"enable_incremental_sort":         "off",
		"jit":                             "off",
		"max_parallel_workers_per_gather": "0",
	})
}

// settingsKey is the key of localSettings in the CustomData of a connection through a pooler.
const settingsKey = "listedge.settings"

// localSettings is the statement that begins each transaction on the connection; empty = no
// pooler answers, and the session has the settings.
func localSettings(conn *pgconn.PgConn) string {
	s, _ := conn.CustomData()[settingsKey].(string)
	return s
}

// Pooled says whether a connection pooler answers on the connection.
func Pooled(conn *pgconn.PgConn) bool { return localSettings(conn) != "" }

// apply makes a new connection use the settings.
//
// A statement sets them, which costs a round trip for each connection: a pooler refuses
// them as startup parameters. The statement sets nothing behind a pooler, which it detects
// by the process id: a pooler reports one of its own. There the server connection may serve
// another client in the next transaction, and would keep the settings. So behind a pooler
// each transaction begins with Local.
func (s Settings) apply(ctx context.Context, conn *pgconn.PgConn) error {
	results, err := conn.Exec(ctx, fmt.Sprintf("%s WHERE pg_backend_pid() = %d", s.set(false), conn.PID())).ReadAll()
	if err == nil && (len(results) != 1 || len(results[0].Rows) == 0) {
		conn.CustomData()[settingsKey] = s.Local()
	}
	return err
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

// ErrParameter: the server does not know a parameter of the URL, or refuses its value.
const ErrParameter = kind("the server refuses a parameter of the URL")

// ExplainParameter adds ErrParameter to an error of connecting with a configuration, if the server
// refuses a parameter. Its message names it, in any language.
func ExplainParameter(err error, c *pgx.ConnConfig) error {
	refused, server := (*pgconn.ConnectError)(nil), (*pgconn.PgError)(nil)
	if !errors.As(err, &refused) || !errors.As(err, &server) {
		return err
	}
	_, name, quoted := strings.Cut(server.Message, `"`)
	name, _, _ = strings.Cut(name, `"`)
	if !quoted { // PgBouncer: unsupported startup parameter: x
		name = server.Message[strings.LastIndex(server.Message, " ")+1:]
	}
	for parameter, value := range c.RuntimeParams {
		if strings.EqualFold(parameter, name) || parameter == "options" && name != "" && strings.Contains(value, name+"=") {
			return fmt.Errorf("%w: %w: correct or remove %s in the URL", ErrParameter, err, parameter)
		}
	}
	return err
}
