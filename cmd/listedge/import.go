package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/google/uuid"

	"listedge/internal/lists"
	"listedge/origin/load"
)

type importCommand struct {
	ChangeFlags
	Collection string    `arg:"" enum:"${lists}" help:"One of ${enum}."`
	File       string    `arg:"" help:"CSV with a header; - reads standard input."`
	Workspace  uuid.UUID `help:"The workspace of the rows." required:""`
}

// Run imports all rows of the file, or none.
func (c *importCommand) Run(ctx acting, t *terminal) error {
	collection := lists.Of(c.Collection)
	rows, err := load.Import(ctx, c.DatabaseURL, collection, c.Workspace, c.File, t.err)
	if bad := (*load.BadFile)(nil); errors.As(err, &bad) {
		fmt.Fprintln(t.err, visibleLines(bad.Error()))
		return fmt.Errorf("nothing was imported: bad rows: %d", bad.Rows)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return usageError{Err: err}
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(t.out, "%d %s\n", rows, collection)
	return nil
}
