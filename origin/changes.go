package origin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Lack is something that nodes follow changes by and that could not be made.
type Lack struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// PublishChanges makes what changes are followed by, but for the slot. It says
// what it did, as "made the publication", and what it could not make.
func PublishChanges(ctx context.Context, url string) (done []string, lacks []Lack, err error) {
	conn, err := connectPrimary(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return publishChanges(ctx, conn)
}

func publishChanges(ctx context.Context, conn *pgx.Conn) (done []string, lacks []Lack, err error) {
	for _, step := range []struct{ what, sql, there, right string }{
		{"the publication", publicationSQL, publishedSQL, "needs the owner of the tables, with CREATE on the database"},
		{"the event triggers, which tell of ALTER TABLE", eventTriggersSQL, triggeredSQL, "need a superuser"},
	} {
		var before, after string
		if err := conn.QueryRow(ctx, step.there).Scan(&before); err != nil {
			return done, lacks, fmt.Errorf("look for %s: %w", step.what, err)
		}
		if _, err := conn.Exec(ctx, step.sql); err != nil {
			var server *pgconn.PgError
			if !errors.As(err, &server) || strings.HasPrefix(server.Code, "57") || strings.HasPrefix(server.Code, "08") {
				return done, lacks, fmt.Errorf("make %s: %w", step.what, err)
			}
			why := server.Message
			if server.Code == "42501" {
				why += ": " + step.right
			}
			lacks = append(lacks, Lack{What: step.what, Why: why})
			continue
		}
		if err := conn.QueryRow(ctx, step.there).Scan(&after); err != nil {
			return done, lacks, fmt.Errorf("look for %s: %w", step.what, err)
		}
		switch {
		case before == "" && after != "":
			done = append(done, "made "+step.what)
		case before != after:
			done = append(done, "mended "+step.what)
		}
	}
	return done, lacks, nil
}
