package usage

import (
	"context"
	_ "embed" // SQL
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/origin/postgres"
)

// Kept is how long the numbers of an hour are kept. When a key was last used is kept as
// long as the key.
const Kept = 35 * 24 * time.Hour

//go:embed write.sql
var writeSQL string

//go:embed expire.sql
var expireSQL string

// Store writes to the primary, on a connection of its own.
type Store struct {
	db       *postgres.Database
	expireAt time.Time
}

// NewStore writes to a database.
func NewStore(db *postgres.Database) *Store { return &Store{db: db} }

// Add writes a batch, as a Writer. Once an hour it also removes rows older than Kept: a node
// without requests does nothing. If that fails, the next hour tries again.
func (s *Store) Add(ctx context.Context, run uuid.UUID, number int64, rows []*Row) error {
	text, _ := json.Marshal(rows) // numbers, ids and times: it cannot fail
	_, err := s.exec(ctx, writeSQL, run.String(), number, string(text))
	if err == nil && time.Now().After(s.expireAt) {
		if more, err := s.exec(ctx, expireSQL, fmt.Sprintf("%d hours", Kept/time.Hour)); err != nil || more == 0 {
			s.expireAt = time.Now().Add(time.Hour)
		}
	}
	return err
}

// exec runs a statement on the primary that the fleet follows, and returns its number of rows.
func (s *Store) exec(ctx context.Context, sql string, arguments ...any) (rows int64, err error) {
	err = s.db.Usage.Write(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sql, append([]any{pgx.QueryExecModeExec}, arguments...)...)
		rows = tag.RowsAffected()
		return err
	})
	return rows, err
}
