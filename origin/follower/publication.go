package follower

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/internal/list"
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
	NoOldRow      string // tables whose updates and deletes do not say whose the row was; of keys and of lists without tenant, which it was
	SetIdentity   string // SQL commands that make them say so
	Unlogged      string // tables, or partitions, whose rows are not in the WAL
	SetLogged     string // SQL commands that make those logged
	Children      string // tables that inherit from a followed table: pages show their rows, and the publication lacks them
	NoInherit     string // SQL commands that end the inheritance
	Ambiguous     []int  // numbers of the lists whose tenant and key may identify several rows, or whose updates do not identify the old row

	lists *list.Set
}

// ReadPublication reads the state of the publication for the lists, in a transaction of its own: behind a
// pooler only that has the settings.
func ReadPublication(ctx context.Context, conn *pgx.Conn, lists *list.Set) (s Publication, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{BeginQuery: "BEGIN; " + postgres.CommandSettings.Local()}, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, publicationSQL, PublicationName, requiredTables(lists))
		s, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Publication])
		return err
	})
	if err != nil {
		return s, fmt.Errorf("read the publication: %w", err)
	}
	s.lists = lists
	return s, nil
}

// requiredTable is what a list, or the keys, needs of a table.
type requiredTable struct {
	Schema  string   `json:"schema"`
	Name    string   `json:"name"`
	List    *int     `json:"list"`    // its number; nil = the keys
	Owner   string   `json:"owner"`   // the column that says whose rows a change touches
	Spot    []string `json:"spot"`    // the columns that say which row it is: tenant and key
	Columns []string `json:"columns"` // all that a change is read from
}

// requiredTables returns what must be published, as JSON.
func requiredTables(lists *list.Set) string {
	var all []requiredTable
	for i, l := range lists.Lists {
		spot := l.Identity()
		r := requiredTable{Schema: l.Table.Schema, Name: l.Table.Table, List: &i, Owner: spot[0], Spot: spot}
		for _, c := range l.Columns {
			r.Columns = append(r.Columns, c.Name)
		}
		all = append(all, r)
	}
	for _, table := range list.KeyTables {
		all = append(all, requiredTable{Schema: table.Schema, Name: table.Table, Owner: "id", Spot: []string{"id"}, Columns: []string{"id"}})
	}
	text, _ := json.Marshal(all) // has nothing that JSON cannot say
	return string(text)
}

// Defect returns why the publication cannot be followed, to be read after "the
// publication", and what to do about it. Empty = it can be followed.
func (s Publication) Defect() (defect, remedy string) {
	publish := "run `listedge migrate up`"
	if !s.lists.BuiltIn {
		publish += ", and what `listedge lists plan` prints"
	}
	switch {
	case !s.Exists:
		return "is missing", publish
	case s.Incomplete != "":
		return "lacks " + s.Incomplete + ", or some of their columns or rows", publish
	case !s.AllOperations:
		return "lacks inserts, updates, deletes or truncates of some partition", "run `listedge migrate up`"
	case s.NoOldRow != "":
		return "does not identify the old version of a changed row of " + s.NoOldRow, s.SetIdentity
	case s.Unlogged != "":
		return "lacks the rows of " + s.Unlogged + ", which Postgres does not write to its WAL (UNLOGGED or FOREIGN)", s.SetLogged
	case s.Children != "":
		return "lacks the rows of " + s.Children + ", which pages show with those of the table that is inherited from", s.NoInherit
	}
	return "", ""
}

// RowsUnnamed returns why changes of some list do not name their rows, to be read after
// "the publication", and what to do about it. Empty = they do.
func (s Publication) RowsUnnamed() (reason, remedy string) {
	if len(s.Ambiguous) == 0 {
		return "", ""
	}
	var names, keys []string
	for _, l := range s.unnamed() {
		names, keys = append(names, l.Table.String()), append(keys, l.Table.SQL()+" ("+list.Quoted(l.Identity()...)+")")
	}
	return "does not say which row of " + strings.Join(names, " and ") + " was changed: every change makes all pages of the list stale",
		"give them the primary key " + strings.Join(keys, " and ") + ", and ALTER TABLE … REPLICA IDENTITY DEFAULT; " +
			"if partitions are by another column, no index can say it"
}

// unnamed returns the lists whose changes do not name their rows.
func (s Publication) unnamed() (of []*list.List) {
	for _, number := range s.Ambiguous {
		of = append(of, s.lists.Lists[number])
	}
	return of
}

// MessagePrefix is the prefix of messages in the WAL for the follower. A message that it
// does not know touches everything.
const MessagePrefix = "listedge"

// schemaChanged is the message of a follower that has found the catalog changed. It
// touches everything.
const schemaChanged = "schema"

// PurgeAll is the message that touches everything.
const PurgeAll = "purge"

// PurgeMessage returns the message that touches a workspace: its keys and, in each list, the rows that it sees.
func PurgeMessage(workspace uuid.UUID, tenant string) string {
	return PurgeAll + " " + workspace.String() + " " + tenant
}

// parsePurge reads what PurgeMessage wrote.
func parsePurge(message string) (workspace, tenant string, ok bool) {
	workspace, tenant, ok = strings.Cut(strings.TrimPrefix(message, PurgeAll+" "), " ")
	return workspace, tenant, ok && strings.HasPrefix(message, PurgeAll+" ") && uuid.Validate(workspace) == nil
}
