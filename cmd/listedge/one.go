package main

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"listedge/origin/admin"
)

// oneFlags are those of a command that does something to one workspace or key.
type oneFlags struct {
	databaseFlags
	jsonFlag
	ID uuid.UUID `arg:"" help:"Its id (of a key: not the key)."`
}

// do has it done, and says so.
func (f oneFlags) do(ctx context.Context, t *terminal, done string, change func(*admin.Conn) (any, error)) error {
	return withAdmin(ctx, f.databaseFlags, func(a *admin.Conn) error {
		row, err := change(a)
		if err != nil {
			return err
		}
		return f.print(t, row, func() { fmt.Fprintln(t.out, done, f.ID) })
	})
}
