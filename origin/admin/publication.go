package admin

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"listedge/origin/postgres"
)

// publicationSQL makes the publication, or adds what it lacks. Of API keys and
// workspaces, Postgres 15 and later publish only the ids, older ones whole rows.
//
//go:embed publication.sql
var publicationSQL string

// publishedSQL is a text of what publicationSQL makes; empty = there is no publication.
const publishedSQL = `
SELECT coalesce((SELECT concat_ws(' ', pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot,
	(SELECT string_agg(concat(prrelid, to_jsonb(r) -> 'prattrs'), ' ' ORDER BY prrelid) FROM pg_publication_rel r WHERE prpubid = p.oid))
	FROM pg_publication p WHERE pubname = 'listedge'), '')`

// MakePublication makes or mends the publication that nodes follow changes by. It
// returns what it did, as "made the publication", or why this user cannot do it.
func MakePublication(ctx context.Context, url string) (done, refused string, err error) {
	conn, err := postgres.ConnectPrimary(ctx, url)
	if err != nil {
		return "", "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var before, after string
	if err = conn.QueryRow(ctx, publishedSQL).Scan(&before); err == nil {
		if _, err = conn.Exec(ctx, publicationSQL); err == nil {
			err = conn.QueryRow(ctx, publishedSQL).Scan(&after)
		}
	}
	var server *pgconn.PgError
	switch {
	case errors.As(err, &server) && !strings.HasPrefix(server.Code, "57") && !strings.HasPrefix(server.Code, "08"):
		if refused = server.Message; server.Code == "42501" { // insufficient_privilege
			refused += ": needs the owner of the tables, with CREATE on the database"
		}
		return "", refused, nil
	case err != nil:
		return "", "", fmt.Errorf("make the publication: %w", err)
	case before == "":
		return "made the publication", "", nil
	case before != after:
		return "mended the publication", "", nil
	}
	return "", "", nil
}
