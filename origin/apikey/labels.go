package apikey

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Label is how people recognise a key.
type Label struct{ Prefix, Name string }

// labelsSQL bounds what it returns: names may have 64 kB.
const labelsSQL = `SELECT id, left(key_prefix, 32), left(name, 80) FROM public.api_keys WHERE id = ANY($1::uuid[])`

// Labels returns the labels of the keys. Only people read them, so an error is no
// failure: the labels that could not be read are absent.
func (s *Store) Labels(ctx context.Context, keys []uuid.UUID) map[uuid.UUID]Label {
	found := map[uuid.UUID]Label{}
	if len(keys) == 0 || s.BreakerOpen() {
		return found
	}
	ids := make([]string, len(keys))
	for i := range keys {
		ids[i] = keys[i].String()
	}
	var id uuid.UUID
	var l Label
	rows, _ := s.db.Keys.Pool.Query(ctx, labelsSQL, pgx.QueryExecModeExec, ids)
	_, _ = pgx.ForEachRow(rows, []any{&id, &l.Prefix, &l.Name}, func() error { found[id] = l; return nil })
	return found
}
