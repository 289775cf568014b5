package follower

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/internal/lists"
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
	exists        bool
	allOperations bool   // it has inserts, updates, deletes and truncates, of each partition
	incomplete    string // tables without all rows, or without the columns that identify their workspace
	noOldRow      string // tables whose updates and deletes do not say in which workspace the row was, or which key or workspace it was
	unlogged      string // tables, or partitions, whose rows are not in the WAL
	setLogged     string // commands that change that
	children      string // tables that inherit from a followed table: pages show their rows, and the publication lacks them
	noInherit     string // commands that end the inheritance

	missingColumns []string // tables without all columns of their lists
	ambiguousRows  []string // tables of which the workspace and the id may identify several rows, or whose updates do not identify the old row
}

// ReadPublication reads the state of the publication. The server does not compile the query,
// which takes longer than the query: behind a pooler the connection cannot say so.
func ReadPublication(ctx context.Context, conn *pgx.Conn) (s Publication, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{BeginQuery: "BEGIN; SET LOCAL jit = off"}, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, publicationSQL, PublicationName, requiredTables()).Scan(&s.exists, &s.allOperations, &s.incomplete, &s.noOldRow,
			&s.unlogged, &s.setLogged, &s.children, &s.noInherit, &s.missingColumns, &s.ambiguousRows)
	})
	if err != nil {
		return s, fmt.Errorf("read the publication: %w", err)
	}
	return s, nil
}

// requiredTables returns the tables of the publication as JSON: the name, the column that
// identifies the list of a row, and the columns of lists.
func requiredTables() string {
	var all []map[string]any
	for _, name := range lists.Tables() {
		w := map[string]any{"name": name, "col": "id"}
		if c := lists.Of(name); c != lists.Keys {
			var listed []string
			for _, column := range c.Columns() {
				listed = append(listed, column.Name)
			}
			w["col"], w["listed"] = "workspace_id", listed
		}
		all = append(all, w)
	}
	text, _ := json.Marshal(all) // has nothing that JSON cannot say
	return string(text)
}

// Defect returns why the publication cannot be followed, to be read after "the
// publication", and what to do about it. Empty = it can be followed.
func (s Publication) Defect() (defect, remedy string) {
	switch {
	case !s.exists:
		return "is missing", "run `listedge migrate up`"
	case s.incomplete != "":
		return "lacks " + s.incomplete + ", or their key columns, or some of their rows", "run `listedge migrate up`"
	case !s.allOperations:
		return "lacks inserts, updates, deletes or truncates of some partition", "run `listedge migrate up`"
	case s.noOldRow != "":
		return "does not identify the old version of a changed row of " + s.noOldRow,
			"ALTER TABLE … REPLICA IDENTITY DEFAULT, with its primary key: (workspace_id, id), or (id) of api_keys and workspaces"
	case s.unlogged != "":
		return "lacks the rows of " + s.unlogged + ", which Postgres does not write to its WAL (UNLOGGED)", s.setLogged
	case s.children != "":
		return "lacks the rows of " + s.children + ", which pages show with those of the table that is inherited from", s.noInherit
	}
	return "", ""
}

// Coarse returns why changes of some collection do not name their rows, to be read after
// "the publication", and what to do about it. Empty = they do.
func (s Publication) Coarse() (reason, remedy string) {
	const effect = ": every change makes all pages of the list stale"
	switch {
	case len(s.missingColumns) > 0:
		return "lacks columns of " + strings.Join(s.missingColumns, " and ") + " that lists have" + effect, "run `listedge migrate up`"
	case len(s.ambiguousRows) > 0:
		return "does not say which row of " + strings.Join(s.ambiguousRows, " and ") + " was changed" + effect,
			"make (workspace_id, id) the primary key, and ALTER TABLE … REPLICA IDENTITY DEFAULT"
	}
	return "", ""
}

// coarse returns a bit for each collection whose changes do not name their rows.
func (s Publication) coarse() (collections uint8) {
	for _, table := range slices.Concat(s.missingColumns, s.ambiguousRows) { // mutation: rows that their id does not name
		collections |= 1 << lists.Of(table)
	}
	return collections
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

// purged returns the workspace in a purge message; false = the message touches everything.
func purged(message []byte) (uuid.UUID, bool) {
	workspace, err := uuid.ParseBytes(bytes.TrimPrefix(message, []byte(purge)))
	return workspace, err == nil
}
