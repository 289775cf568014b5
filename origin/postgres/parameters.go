package postgres

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrParameter: the server does not know a parameter of the URL, or refuses its value.
const ErrParameter = kind("the server refuses a parameter of the URL")

// foreignParameter returns what to do about a parameter of a URL that another client reads itself
// and that would be sent to the server here. Empty: it may be a setting of Postgres.
func foreignParameter(name string) string {
	switch folded := strings.ToLower(name); folded {
	case "pgbouncer", "preparethreshold", "prepared_statements", "statement_cache_size", "prepared_statement_cache_size":
		return "leave it out, a pooler is noticed without it"
	case "connection_limit", "pool", "pool_size", "pool_timeout", "max_connections":
		return "leave it out, --database-connections bounds the connections of a node"
	case "schema", "currentschema", "schema_search_path":
		return "leave it out, the tables are in the schema public"
	case "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count":
		return "leave it out, connections that the network has lost are noticed"
	case "socket_timeout", "sslaccept", "sslidentity", "sslcompression", "sslcrl", "sslcrldir", "requiressl", "requirepeer", "gssencmode", "gsslib",
		"gssdelegation", "load_balance_hosts", "fallback_application_name", "encoding", "uselibpqcompat":
		return "leave it out"
	case "datestyle", "intervalstyle", "timezone":
	default:
		if folded != name && !strings.Contains(name, ".") { // JDBC's; the settings of Postgres are in lower case
			return "leave it out"
		}
	}
	return ""
}

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
