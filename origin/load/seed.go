package load

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/schollz/progressbar/v3"

	"listedge/internal/lists"
	"listedge/origin/audit"
	"listedge/origin/postgres"
)

// SeedSpec says how much sample data to make. Equal specs make equal data in every database
// and at any time: each byte is the same, also of the ids.
type SeedSpec struct {
	Workspaces int
	Items      int // per workspace
	Contacts   int // per workspace
	Seed       int64
}

var (
	//go:embed sample.sql
	sampleSQL string
	//go:embed words.json
	words     string
	seedSpace = uuid.NewSHA1(uuid.NameSpaceURL, []byte("listedge:seed")) // the namespace of the ids of sample workspaces
)

// seedRows is how many rows one statement makes. The progress is shown after each.
const seedRows = 2000

// Seed makes workspaces with sample data, each in its own transaction, and returns
// their ids. It ends at the first that exists. The progress is written to out.
func Seed(ctx context.Context, databaseURL string, spec SeedSpec, out io.Writer) (workspaces []uuid.UUID, err error) {
	conn, err := postgres.ConnectPrimary(ctx, databaseURL)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	done, total := int64(0), int64(spec.Workspaces)*(int64(spec.Items)+int64(spec.Contacts))
	bar := startProgress(out, "seed", total, false)
	defer func() { endProgress(out, bar, done, "") }()
	for n := range spec.Workspaces {
		name := binary.BigEndian.AppendUint64([]byte("workspace"), uint64(spec.Seed))
		id := uuid.NewSHA1(seedSpace, binary.BigEndian.AppendUint64(name, uint64(n)))
		if err := pgx.BeginTxFunc(ctx, conn, long, func(tx pgx.Tx) error { return seedWorkspace(ctx, tx, spec, n, id, bar) }); err != nil {
			return workspaces, fmt.Errorf("seed: %w", cmp.Or(ctx.Err(), err)) // the server only knows of a request to cancel
		}
		workspaces = append(workspaces, id)
	}
	if _, err := conn.Exec(ctx, `ANALYZE `+strings.Join(lists.Names(), ", ")); err != nil { // so that the planner knows the new rows
		return workspaces, fmt.Errorf("seed: %w", err)
	}
	done = total
	return workspaces, nil
}

func seedWorkspace(ctx context.Context, tx pgx.Tx, spec SeedSpec, n int, id uuid.UUID, bar *progressbar.ProgressBar) error {
	name := fmt.Sprintf("Sample workspace %d (seed %d)", n+1, spec.Seed)
	const insert = `INSERT INTO workspaces (id, name, created_at) VALUES ($1, $2, timestamptz '2019-01-01Z' + $3 * interval '1 minute') ON CONFLICT DO NOTHING`
	if tag, err := tx.Exec(ctx, insert, id, name, n); err != nil {
		return postgres.WithSchemaHint(err)
	} else if tag.RowsAffected() == 0 {
		return fmt.Errorf("workspace %s is already there; choose another --seed", id)
	}
	if _, err := tx.Exec(ctx, sampleSQL, pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	for i, rows := range []int{spec.Contacts, spec.Items} {
		table, stream := []string{"contacts", "items"}[i], (spec.Seed*1_000_003+int64(n))*8+int64(i)*4
		for first := 0; first < rows; first += seedRows {
			last := min(first+seedRows, rows) - 1
			if _, err := tx.Exec(ctx, "SELECT pg_temp.sample_"+table+"($1::uuid, $2, $3::jsonb, $4, $5, $6::int)",
				id, stream, words, first, last, spec.Contacts); err != nil {
				return err
			}
			_ = bar.Add(last + 1 - first)
		}
	}
	return audit.Write(ctx, tx, audit.Act{Action: "seed", Workspace: &id, Details: map[string]any{
		"name": name, "seed": spec.Seed, "items": spec.Items, "contacts": spec.Contacts}})
}
