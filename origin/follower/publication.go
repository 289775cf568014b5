// Package publication knows what changes are followed by: how the publication
// and the slot are called, and whether the publication tells all that nodes
// need to know. Who follows it and who diagnoses a server ask the same.
package follower

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// PublicationName is that of the publication, which `migrate up` makes.
const PublicationName = "listedge"

// SlotPrefix begins a slot's name; the database's oid follows, because slots
// belong to a database but share one space of names with those of all others,
// and then what SlotSuffix says.
const SlotPrefix = "listedge_"

// SlotSuffix ends the name of a region's slot: regions that share a database,
// and each have a log of changes of their own, each follow by a slot of their
// own. The region that has no name needs none.
func SlotSuffix(region string) string {
	if region == "" {
		return ""
	}
	return "_" + region
}

// state is what of it there is, one row.
//
//go:embed publication.sql
var publicationSQL string

// Publication is what of the publication there is. Lists of tables are for people.
type Publication struct {
	There    bool
	Whole    bool   // inserts, updates, deletes and truncates, of each partition
	Lacks    string // tables of which it tells not all rows, or not the columns that name their workspace
	Nameless string // tables whose updates and deletes do not name the workspace that a row was in
	Unlogged string // tables, or partitions, whose rows are not in the WAL
	Log      string // the commands by which they are
	Heirs    string // tables that inherit from one of ours: their rows are read with its own, and not told
	Disown   string // the commands by which they do no more
}

// ReadPublication asks the server that conn is connected to.
func ReadPublication(ctx context.Context, conn *pgx.Conn) (s Publication, err error) {
	if err = conn.QueryRow(ctx, publicationSQL, PublicationName).Scan(&s.There, &s.Whole, &s.Lacks, &s.Nameless, &s.Unlogged, &s.Log, &s.Heirs, &s.Disown); err != nil {
		return s, fmt.Errorf("look at the publication: %w", err)
	}
	return s, nil
}

// Defect says what is wrong, to be read behind "the publication", and what to
// do about it; empty if nothing is.
func (s Publication) Defect() (defect, do string) {
	switch {
	case !s.There:
		return "is missing", "run `listedge migrate up`"
	case s.Lacks != "":
		return "lacks " + s.Lacks + ", or their key columns, or some of their rows", "run `listedge migrate up`"
	case !s.Whole:
		return "does not tell inserts, updates, deletes and truncates of each partition", "run `listedge migrate up`"
	case s.Nameless != "":
		return "does not tell which workspace a row of " + s.Nameless + " was moved from", "ALTER TABLE … REPLICA IDENTITY DEFAULT, with the primary key (workspace_id, id)"
	case s.Unlogged != "":
		return "lacks the rows of " + s.Unlogged + ", which Postgres does not write to its WAL (UNLOGGED)", s.Log
	case s.Heirs != "":
		return "does not tell the rows of " + s.Heirs + ", which are read as those of the table that is inherited from", s.Disown
	}
	return "", ""
}
