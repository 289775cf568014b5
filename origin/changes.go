package origin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"listedge/origin/postgres"
)

// Lack is something that nodes follow changes by and that could not be made.
type Lack struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// PublishChanges makes what changes are followed by, but for the slot. It says
// what it did, as "made the publication", and what it could not make.
func PublishChanges(ctx context.Context, url string) (done []string, lacks []Lack, err error) {
	conn, err := postgres.ConnectPrimary(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return publishChanges(ctx, conn)
}

func publishChanges(ctx context.Context, conn *pgx.Conn) (done []string, lacks []Lack, err error) {
	const what = "the publication"
	var before, after string
	if err := conn.QueryRow(ctx, publishedSQL).Scan(&before); err != nil {
		return nil, nil, fmt.Errorf("look for %s: %w", what, err)
	}
	if _, err := conn.Exec(ctx, publicationSQL); err != nil {
		var server *pgconn.PgError
		if !errors.As(err, &server) || strings.HasPrefix(server.Code, "57") || strings.HasPrefix(server.Code, "08") {
			return nil, nil, fmt.Errorf("make %s: %w", what, err)
		}
		why := server.Message
		if server.Code == "42501" {
			why += ": needs the owner of the tables, with CREATE on the database"
		}
		return nil, []Lack{{What: what, Why: why}}, nil
	}
	if err := conn.QueryRow(ctx, publishedSQL).Scan(&after); err != nil {
		return nil, nil, fmt.Errorf("look for %s: %w", what, err)
	}
	switch {
	case before == "" && after != "":
		done = []string{"made " + what}
	case before != after:
		done = []string{"mended " + what}
	}
	return done, nil, nil
}
