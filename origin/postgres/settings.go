package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Settings of sessions, by name.
type Settings map[string]string

// pooled is what a connection that leads through a pooler has in its CustomData.
const pooled = "listedge.pooled"

// Pooled says whether a connection pooler answers on the connection.
func Pooled(conn *pgconn.PgConn) bool { return conn.CustomData()[pooled] != nil }

// Hold has new connections of the config run with the settings.
//
// They are set by a statement: a pooler refuses them as startup parameters. A
// pooler names its clients by process ids of its own; where it answers, nothing
// is set, because the session may be another client's with the next transaction,
// and a setting would stay behind. There each transaction has to begin with
// Local. It costs a round trip for each connection.
func (s Settings) Hold(c *pgconn.Config) {
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

// Local is a statement that sets them until the transaction ends that it is
// asked in. The default of a transaction becomes its own: that it is another
// isolation than the transaction began with is an error.
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
