// Package hosts has a connection meet the server that is meant, where the URL
// of a database names several: postgres://user@a,b/database. Which of them is
// the primary changes with a fail-over.
package hosts

import (
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Primary reads a URL for connections that write, or that follow what is
// written: of several servers they meet the primary.
func Primary(url string) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	Choose(config, pgconn.ValidateConnectTargetSessionAttrsPrimary)
	return config, nil
}

// Choose says which of several servers is meant, unless the URL does
// (target_session_attrs). A single one is taken for what it is.
func Choose(c *pgx.ConnConfig, which pgconn.ValidateConnectFunc) {
	several := slices.ContainsFunc(c.Fallbacks, func(f *pgconn.FallbackConfig) bool { return f.Host != c.Host || f.Port != c.Port })
	if several && c.ValidateConnect == nil {
		c.ValidateConnect = which
	}
}
