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

// publicationSQL makes the publication of the whole TABLES, or adds what it lacks.
//
//go:embed publication.sql
var publicationSQL string

// publishedSQL returns the state of the publication as a text, to compare; empty = there is
// no publication.
const publishedSQL = `
SELECT coalesce((SELECT concat_ws(' ', pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot,
	(SELECT string_agg(concat(prrelid, to_jsonb(r) -> 'prattrs', to_jsonb(r) -> 'prqual'), ' ' ORDER BY prrelid) FROM pg_publication_rel r WHERE prpubid = p.oid))
	FROM pg_publication p WHERE pubname = 'listedge'), '')`

// publicationLockSQL takes the lock that publicationSQL takes. If several programs migrate at
// once, only the first of them finds the publication missing.
const publicationLockSQL = `SELECT pg_advisory_xact_lock(7235116)`

// MakePublication makes or mends the publication that nodes follow changes by. It
// returns what it did, as "made the publication", or why this user cannot do it.
func MakePublication(ctx context.Context, url string) (done, refused string, err error) {
	c, err := Open(ctx, url)
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	done, err = act(ctx, c, func(tx pgx.Tx) (string, audit.Act, error) { return changePublication(ctx, tx) })
	var server *pgconn.PgError
	switch {
	case errors.As(err, &server) && !strings.HasPrefix(server.Code, "57") && !strings.HasPrefix(server.Code, "08"):
		if refused = server.Message; server.Code == "42501" { // insufficient_privilege
			refused += ": needs the owner of the tables, with CREATE on the database"
		}
		return "", refused, nil
	case errors.Is(err, errPublished):
		return "", "", nil
	case err != nil:
		return "", "", fmt.Errorf("make the publication: %w", err)
	}
	return done, "", nil
}

// errPublished: the publication is as it should be.
var errPublished = errors.New("nothing to change")

// changePublication makes or mends the publication and returns what it did.
func changePublication(ctx context.Context, tx pgx.Tx) (done string, a audit.Act, err error) {
	var before, after string
	if _, err = tx.Exec(ctx, publicationLockSQL); err == nil {
		err = tx.QueryRow(ctx, publishedSQL).Scan(&before)
	}
	if err == nil {
		_, err = tx.Exec(ctx, strings.ReplaceAll(publicationSQL, "TABLES", lists.TablesSQL))
	}
	if err == nil {
		err = tx.QueryRow(ctx, publishedSQL).Scan(&after)
	}
	switch {
	case err != nil:
		return "", a, err
	case before == after: // mutation: a publication that stays is in the log
		return "", a, errPublished
	case before == "":
		done = "made the publication"
	default:
		done = "mended the publication"
	}
	return done, audit.Act{Action: "migrate.publication", Details: map[string]any{"did": done}}, nil
}
