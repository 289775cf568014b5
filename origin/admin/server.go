package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"listedge/internal/remedy"
	"listedge/origin/postgres"
)

const serverSQL = `SELECT current_setting('server_version_num')::int, split_part(current_setting('server_version'), ' ', 1),
	pg_encoding_to_char(encoding) FROM pg_database WHERE datname = current_database()`

// checkServer returns why the database cannot have the schema; nil if it can.
func checkServer(ctx context.Context, db querier) error {
	var number int
	var version, encoding string
	if err := db.QueryRow(ctx, serverSQL, pgx.QueryExecModeExec).Scan(&number, &version, &encoding); err != nil {
		return fmt.Errorf("read the server's version: %w", postgres.Classify(err))
	}
	return judgeServer(number, version, encoding)
}

// judgeServer judges server_version_num, server_version and the database's encoding. The
// client's encoding does not help: the database cannot store a character that its own
// encoding lacks.
func judgeServer(number int, version, encoding string) error {
	switch {
	case number < 150_000:
		return remedy.Add(errors.New("Postgres "+version+" is too old"), "use Postgres 15 or later")
	case encoding != "UTF8":
		return remedy.Add(errors.New("the database's encoding is "+encoding+", which cannot hold every name"), "make a database with ENCODING 'UTF8'")
	}
	return nil
}
