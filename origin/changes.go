package origin

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// publicationSQL makes the publication, or adds to it what it lacks. Column
// lists came with Postgres 15; without them whole rows are sent.
//
//go:embed publication.sql
var publicationSQL string

const eventTriggersSQL = `DO $$
BEGIN
	PERFORM pg_advisory_xact_lock(7235116); -- several nodes may migrate at once
	IF NOT EXISTS (SELECT FROM pg_event_trigger WHERE evtname = 'listedge_ddl') THEN
		CREATE EVENT TRIGGER listedge_ddl ON ddl_command_end EXECUTE FUNCTION listedge_on_ddl();
	END IF;
	IF NOT EXISTS (SELECT FROM pg_event_trigger WHERE evtname = 'listedge_drop') THEN
		CREATE EVENT TRIGGER listedge_drop ON sql_drop EXECUTE FUNCTION listedge_on_ddl();
	END IF;
END $$`

// Lack is something that nodes follow changes by and that could not be made.
type Lack struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// PublishChanges makes what changes are followed by, but for the slot, and
// says what it could not make.
func PublishChanges(ctx context.Context, url string) ([]Lack, error) {
	conn, err := connectAdmin(ctx, url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return publishChanges(ctx, conn)
}

func publishChanges(ctx context.Context, conn *pgx.Conn) (lacks []Lack, err error) {
	for _, step := range []struct{ what, sql, right string }{
		{"the publication", publicationSQL, "needs the owner of the tables, with CREATE on the database"},
		{"the event triggers, which tell of ALTER TABLE", eventTriggersSQL, "need a superuser"},
	} {
		if _, err := conn.Exec(ctx, step.sql); err != nil {
			var server *pgconn.PgError
			if !errors.As(err, &server) || strings.HasPrefix(server.Code, "57") || strings.HasPrefix(server.Code, "08") {
				return lacks, fmt.Errorf("make %s: %w", step.what, err)
			}
			why := server.Message
			if server.Code == "42501" {
				why += ": " + step.right
			}
			lacks = append(lacks, Lack{What: step.what, Why: why})
		}
	}
	return lacks, nil
}
