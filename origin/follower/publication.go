package follower

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// PublicationName names the publication, which `migrate up` makes. SlotPrefix
// begins a slot's name. Then come the database's oid, because all databases of a
// server share the names of slots, and SlotSuffix.
const (
	PublicationName = "listedge"
	SlotPrefix      = "listedge_"
)

// SlotSuffix ends the name of a region's slot. Regions that share a database have
// a log and a slot each. It is empty for the region without a name.
func SlotSuffix(region string) string {
	if region == "" {
		return ""
	}
	return "_" + region
}

//go:embed publication.sql
var publicationSQL string

// Publication is the state of the publication. Lists of tables are for people.
type Publication struct {
	There    bool
	Whole    bool   // it has inserts, updates, deletes and truncates, of each partition
	Lacks    string // tables without all rows, or without the columns that name their workspace
	Nameless string // tables whose updates and deletes do not name a row's old workspace
	Unlogged string // tables, or partitions, whose rows are not in the WAL
	Log      string // commands that log them
	Heirs    string // tables that inherit from one of ours: pages show their rows, the publication does not
	Disown   string // commands that end the inheritance

	Narrow    []string // tables without all columns that lists are ordered or filtered by
	Ambiguous []string // tables where the workspace and the id may name several rows, or an update does not name the row as it was
}

// ReadPublication reads the state of the publication.
func ReadPublication(ctx context.Context, conn *pgx.Conn) (s Publication, err error) {
	if err = conn.QueryRow(ctx, publicationSQL, PublicationName).Scan(&s.There, &s.Whole, &s.Lacks, &s.Nameless, &s.Unlogged, &s.Log, &s.Heirs, &s.Disown,
		&s.Narrow, &s.Ambiguous); err != nil {
		return s, fmt.Errorf("read the publication: %w", err)
	}
	return s, nil
}

// Defect says what is wrong, to be read after "the publication", and what to do
// about it; empty = nothing is.
func (s Publication) Defect() (defect, do string) {
	switch {
	case !s.There:
		return "is missing", "run `listedge migrate up`"
	case s.Lacks != "":
		return "lacks " + s.Lacks + ", or their key columns, or some of their rows", "run `listedge migrate up`"
	case !s.Whole:
		return "lacks inserts, updates, deletes or truncates of some partition", "run `listedge migrate up`"
	case s.Nameless != "":
		return "does not say which workspace a row of " + s.Nameless + " was moved from", "ALTER TABLE … REPLICA IDENTITY DEFAULT, with the primary key (workspace_id, id)"
	case s.Unlogged != "":
		return "lacks the rows of " + s.Unlogged + ", which Postgres does not write to its WAL (UNLOGGED)", s.Log
	case s.Heirs != "":
		return "lacks the rows of " + s.Heirs + ", which pages show with those of the table that is inherited from", s.Disown
	}
	return "", ""
}

// Coarse says why changes do not name their rows, to be read after "the publication",
// and what to do about it; empty = they do.
func (s Publication) Coarse() (coarse, do string) {
	const so = ": every change makes all pages of the list stale"
	switch {
	case len(s.Narrow) > 0:
		return "lacks columns of " + strings.Join(s.Narrow, " and ") + " that lists are ordered or filtered by" + so, "run `listedge migrate up`"
	case len(s.Ambiguous) > 0:
		return "does not say which row of " + strings.Join(s.Ambiguous, " and ") + " was changed" + so,
			"make (workspace_id, id) the primary key, and ALTER TABLE … REPLICA IDENTITY DEFAULT"
	}
	return "", ""
}

// coarse has a bit for each collection whose rows changes do not name.
func (s Publication) coarse() (collections uint8) {
	for _, table := range slices.Concat(s.Narrow, s.Ambiguous) {
		collections |= 1 << collectionOf[table]
	}
	return collections
}

// MessagePrefix marks messages in the WAL for the follower. An unknown message
// touches everything.
const MessagePrefix = "listedge"

// schemaChanged is the message of a follower that has found the catalog changed. It
// touches everything.
const schemaChanged = "schema"

// byEventTrigger says whether an event trigger of an earlier version wrote the
// message: the tag of a command, as "ALTER TABLE", for all DDL in the database.
// Followers of this version read the catalog instead.
func byEventTrigger(message []byte) bool {
	return len(message) > 0 && 'A' <= message[0] && message[0] <= 'Z'
}

const purge = "purge "

// PurgeMessage is the message that touches all pages of a workspace; nil = of all
// workspaces.
func PurgeMessage(workspace *uuid.UUID) string {
	if workspace == nil {
		return purge
	}
	return purge + workspace.String()
}

// purged is the workspace that a message names; false = it touches everything.
func purged(message []byte) (uuid.UUID, bool) {
	named, ok := strings.CutPrefix(string(message), purge)
	if !ok {
		return uuid.UUID{}, false
	}
	workspace, err := uuid.Parse(named)
	return workspace, err == nil
}
