package follower

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/internal/lists"
	"listedge/origin/postgres"
)

// PublicationName is the name of the publication, which `migrate up` makes. The name of
// a slot is SlotPrefix, the database's oid (the databases of a server share the names of
// slots), and SlotSuffix.
const (
	PublicationName = "listedge"
	SlotPrefix      = "listedge_"
)

// SlotSuffix is the end of the name of a region's slot. Regions that share a database
// have a log and a slot each. It is empty for the region without a name.
func SlotSuffix(region string) string {
	if region == "" {
		return ""
	}
	return "_" + region
}

//go:embed publication.sql
var publicationSQL string

// Publication is what publication.sql selects: the state of the publication, and of the
// tables. Lists of tables in one string are for people to read; empty = none.
type Publication struct {
	Exists        bool
	AllOperations bool   // it has inserts, updates, deletes and truncates, of each partition
	Incomplete    string // tables without all rows, or without the columns that a change is read from
	NoOldRow      string // tables whose updates and deletes do not say in which workspace the row was, or which key or workspace it was
	Unlogged      string // tables, or partitions, whose rows are not in the WAL
	SetLogged     string // SQL commands that make those logged
	Children      string // tables that inherit from a followed table: pages show their rows, and the publication lacks them
	NoInherit     string // SQL commands that end the inheritance

	AmbiguousRows []string // tables of which the workspace and the id may identify several rows, or whose updates do not identify the old row
}

// ReadPublication reads the state of the publication, in a transaction of its own: behind a
// pooler only that has the settings.
func ReadPublication(ctx context.Context, conn *pgx.Conn) (s Publication, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{BeginQuery: "BEGIN; " + postgres.CommandSettings.Local()}, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, publicationSQL, PublicationName, requiredTables())
		s, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Publication])
		return err
	})
	if err != nil {
		return s, fmt.Errorf("read the publication: %w", err)
	}
	return s, nil
}

// requiredTables returns the tables of the publication as JSON: the name, the column that
// identifies the list of a row, and all columns that a change is read from.
func requiredTables() string {
	var all []map[string]any
	for _, name := range lists.Tables() {
		col, required := "id", []string{"id"}
		if c := lists.Of(name); c != lists.Keys {
			col, required = "workspace_id", []string{"workspace_id"}
			for _, column := range c.Columns() {
				required = append(required, column.Name)
			}
		}
		all = append(all, map[string]any{"name": name, "col": col, "required": required, "list": col != "id"})
	}
	text, _ := json.Marshal(all) // has nothing that JSON cannot say
	return string(text)
}

// Defect returns why the publication cannot be followed, to be read after "the
// publication", and what to do about it. Empty = it can be followed.
func (s Publication) Defect() (defect, remedy string) {
	switch {
	case !s.Exists:
		return "is missing", "run `listedge migrate up`"
	case s.Incomplete != "":
		return "lacks " + s.Incomplete + ", or some of their columns or rows", "run `listedge migrate up`"
	case !s.AllOperations:
		return "lacks inserts, updates, deletes or truncates of some partition", "run `listedge migrate up`"
	case s.NoOldRow != "":
		return "does not identify the old version of a changed row of " + s.NoOldRow,
			"ALTER TABLE … REPLICA IDENTITY DEFAULT, with its primary key: (workspace_id, id), or (id) of api_keys and workspaces"
	case s.Unlogged != "":
		return "lacks the rows of " + s.Unlogged + ", which Postgres does not write to its WAL (UNLOGGED or FOREIGN)", s.SetLogged
	case s.Children != "":
		return "lacks the rows of " + s.Children + ", which pages show with those of the table that is inherited from", s.NoInherit
	}
	return "", ""
}

// RowsUnnamed returns why changes of some collection do not name their rows, to be read after
// "the publication", and what to do about it. Empty = they do.
func (s Publication) RowsUnnamed() (reason, remedy string) {
	if len(s.AmbiguousRows) == 0 {
		return "", ""
	}
	return "does not say which row of " + strings.Join(s.AmbiguousRows, " and ") + " was changed: every change makes all pages of the list stale",
		"make (workspace_id, id) the primary key, and ALTER TABLE … REPLICA IDENTITY DEFAULT"
}

// rowsUnnamed are the collections whose changes do not name their rows.
func (s Publication) rowsUnnamed() (of [lists.Collections]bool) {
	for _, table := range s.AmbiguousRows {
		of[lists.Of(table)] = true
	}
	return of
}

// MessagePrefix is the prefix of messages in the WAL for the follower. A message that it
// does not know touches everything.
const MessagePrefix = "listedge"

// schemaChanged is the message of a follower that has found the catalog changed. It
// touches everything.
const schemaChanged = "schema"

const purge = "purge "

// PurgeMessage returns the message that touches all lists of a workspace; nil = of all
// workspaces.
func PurgeMessage(workspace *uuid.UUID) string {
	if workspace == nil {
		return purge
	}
	return purge + workspace.String()
}
