package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/google/uuid"

	"listedge/origin"
	"listedge/origin/load"
)

type importCommand struct {
	databaseFlags
	Collection string    `arg:"" enum:"items,contacts" help:"items or contacts."`
	File       string    `arg:"" help:"CSV with a header, or JSON Lines; - reads standard input."`
	Workspace  uuid.UUID `help:"The workspace the rows belong to." required:""`
}

// Run imports the file, wholly or not at all.
func (c *importCommand) Run(ctx context.Context, t *terminal) error {
	collection := origin.Items
	if c.Collection == origin.Contacts.String() {
		collection = origin.Contacts
	}
	rows, err := load.Import(ctx, c.DatabaseURL, collection, c.Workspace, c.File, load.NewProgress(t.err))
	if errors.Is(err, fs.ErrNotExist) {
		return usageError{err}
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(t.out, "%d %s\n", rows, collection)
	return nil
}
