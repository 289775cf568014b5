package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"listedge/origin"
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

// The range of created_at.
var (
	seedFrom  = time.Date(2019, 1, 1, 0, 0, 0, 0, time.UTC)
	seedUntil = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
)

// seedSpace is the namespace of the ids of sample workspaces. A workspace's id is
// the namespace of its rows' ids.
var seedSpace = uuid.NewSHA1(uuid.NameSpaceURL, []byte("listedge:seed"))

// Seed makes workspaces with sample data, each in its own transaction, and returns
// their ids. It changes nothing if one of them exists. p may be nil.
func Seed(ctx context.Context, databaseURL string, spec SeedSpec, p *Progress) (workspaces []uuid.UUID, err error) {
	if p == nil {
		p = NewProgress(io.Discard)
	}
	if spec.Workspaces < 1 || spec.Items < 0 || spec.Contacts < 0 {
		return nil, errors.New("seed: wants one workspace or more, and no negative numbers")
	}
	for n := range spec.Workspaces {
		workspaces = append(workspaces, seedID(seedSpace, "workspace", uint64(spec.Seed), n))
	}
	conn, err := connect(ctx, databaseURL)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var there uuid.UUID
	switch err := conn.QueryRow(ctx, anyWorkspaceSQL, workspaces).Scan(&there); {
	case err == nil:
		return nil, errSeeded(there)
	case !errors.Is(err, pgx.ErrNoRows):
		return nil, fmt.Errorf("seed: %w", postgres.WithSchemaHint(err))
	}

	each := int64(spec.Items) + int64(spec.Contacts)
	p.begin("seed", each*int64(spec.Workspaces), rowsUnit)
	defer p.abandon()
	for n, id := range workspaces {
		before := each * int64(n)
		err := transact(ctx, conn, func(tx pgx.Tx) error { return seedWorkspace(ctx, tx, spec, n, id, before, p) })
		if err != nil {
			if ctx.Err() != nil {
				err = ctx.Err() // which the server only knows as a request to cancel
			}
			return workspaces[:n], fmt.Errorf("seed: %w", err)
		}
	}
	p.phase("analyzing", 0, rowsUnit)
	if _, err := conn.Exec(ctx, analyzeSQL); err != nil { // so that the planner knows the new rows
		return workspaces, fmt.Errorf("seed: %w", err)
	}
	p.end(each*int64(spec.Workspaces), "")
	return workspaces, nil
}

func errSeeded(workspace uuid.UUID) error {
	return fmt.Errorf("workspace %s is already there; choose another --seed", workspace)
}

func seedWorkspace(ctx context.Context, tx pgx.Tx, spec SeedSpec, n int, id uuid.UUID, before int64, p *Progress) error {
	name := fmt.Sprintf("Sample workspace %d (seed %d)", n+1, spec.Seed)
	var pgErr *pgconn.PgError
	if _, err := tx.Exec(ctx, insertWorkspaceSQL, id, name, seedFrom.Add(time.Duration(n)*time.Minute)); errors.As(err, &pgErr) && pgErr.Code == "23505" { // unique_violation: another seed at the same time
		return errSeeded(id)
	} else if err != nil {
		return err
	}
	for _, c := range []origin.Collection{origin.Contacts, origin.Items} {
		s := newSample(spec, n, id, c)
		count := spec.Items
		if c == origin.Contacts {
			count = spec.Contacts
		}
		rows := before
		columns := append([]string{"workspace_id"}, names(c.Columns())...)
		err := copyRows(ctx, tx, pgx.Identifier{c.String()}, columns, func() ([]any, error) {
			if s.next == count {
				return nil, io.EOF
			}
			rows++
			p.step(rows, rows)
			return s.row(), nil
		})
		if err != nil {
			return err
		}
		before += int64(count)
	}
	return audit.Write(ctx, tx, audit.Act{Action: "seed", Workspace: &id, Details: map[string]any{
		"name": name, "seed": spec.Seed, "items": spec.Items, "contacts": spec.Contacts}})
}

// seedID derives an id from its namespace, kind, seed and number.
func seedID(space uuid.UUID, kind string, seed uint64, n int) uuid.UUID {
	name := binary.BigEndian.AppendUint64([]byte(kind), seed)
	return uuid.NewSHA1(space, binary.BigEndian.AppendUint64(name, uint64(n)))
}
