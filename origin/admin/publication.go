package admin

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"listedge/internal/lists"
	"listedge/origin/audit"
)

// publicationSQL makes the publication of the whole TABLES, or adds what it lacks, and
// leaves in listedge.did what it did. Its lock is for programs that migrate at once: only the
// first of them finds the publication missing.
//
//go:embed publication.sql
var publicationSQL string

// errPublished: the publication is as it should be.
var errPublished = errors.New("nothing to change")

// makePublication makes or mends the publication that nodes follow changes by. It
// returns what it did, or why this user cannot do it; empty = nothing was to be done.
func makePublication(ctx context.Context, url string) (done string, err error) {
	c, err := Open(ctx, url)
	if err != nil {
		return "", err
	}
	defer c.Close()
	done, err = act(ctx, c, func(tx pgx.Tx) (did string, a audit.Act, err error) {
		if _, err = tx.Exec(ctx, strings.ReplaceAll(publicationSQL, "TABLES", lists.TablesSQL)); err == nil {
			err = tx.QueryRow(ctx, `SELECT current_setting('listedge.did')`).Scan(&did)
		}
		if err == nil && did == "" {
			err = errPublished
		}
		return did, audit.Act{Action: "migrate.publication", Details: map[string]any{"did": did}}, err
	})
	var server *pgconn.PgError
	switch {
	case errors.As(err, &server) && !strings.HasPrefix(server.Code, "57") && !strings.HasPrefix(server.Code, "08"):
		done = "not made: the publication: " + server.Message
		if server.Code == "42501" { // insufficient_privilege
			done += ": needs the owner of the tables, with CREATE on the database"
		}
	case errors.Is(err, errPublished):
	case err != nil:
		return "", fmt.Errorf("make the publication: %w", err)
	}
	return done, nil
}
