package follower

import (
	"context"
	_ "embed"
	"fmt"
	"slices"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgtype"

	"listedge/internal/changefeed"
	"listedge/internal/list"
)

//go:embed catalog.sql
var catalogSQL string

// View is a snapshot of the primary, and the relations that pages are read from, as the same
// snapshot of the database's catalog has them.
//
// DDL such as ALTER TABLE and ATTACH PARTITION changes pages and is not in the
// stream of changes. So the statement that takes a heartbeat's snapshot reads
// the catalog's version. If the version has changed, the follower writes a
// message into the WAL that touches everything, and takes the heartbeat's snapshot
// again. So the rule of heartbeats holds: everything that the snapshot sees
// has been published. No event trigger is needed, which only a superuser can make.
//
// The catalog also decides which relations are decoded. Between two views either
// the catalog has not changed, and so pages are read from the same relations; or
// the message makes every page stale that was read before the later view. So if
// the later view sees a change of a relation that the catalog does not list, no
// valid page shows it. If it does not see it yet (the commit waits for a
// standby), the relation may have been attached before the view: see unlisted.
//
// One case is missed: a table with rows that is attached and detached (or made
// to inherit, and dropped) in two transactions, both between two heartbeats.
type View struct {
	At       pglogrepl.LSN // the end of the WAL, read after the snapshot was taken
	Snapshot changefeed.Snapshot
	Text     string  // the snapshot, as Postgres writes it
	Version  string  // of the catalog
	catalog  catalog // empty if the version is the known one
}

// catalog says what the relations and types of the log are.
type catalog struct {
	lists map[uint32][]*list.List // by the oid of a relation: the lists that show its rows; nil among them is the keys
	bases map[uint32]uint32       // by the oid of a domain: that of the type that it is made of
}

// isOf reports whether a column of the log has the type of a list's. Texts with and without a bound are of one type.
func (c catalog) isOf(logged, listed uint32) bool {
	base, domain := c.bases[logged]
	if domain {
		logged = base
	}
	isText := func(oid uint32) bool { return oid == pgtype.TextOID || oid == pgtype.VarcharOID }
	return logged == listed || isText(logged) && isText(listed)
}

// followed is what a view is asked for: the tables of lists and keys, and the enums of their columns. The schemas
// and the names are those of the tables, one by one.
type followed struct {
	lists          [][]*list.List // by table: the lists that show its rows; nil among them is the keys
	schemas, names []string
	enums          []uint32
}

func followedOf(lists *list.Set) (f followed) {
	add := func(table list.Name, l *list.List) {
		i := 0
		for i < len(f.names) && (list.Name{Schema: f.schemas[i], Table: f.names[i]}) != table {
			i++
		}
		if i == len(f.names) {
			f.schemas, f.names, f.lists = append(f.schemas, table.Schema), append(f.names, table.Table), append(f.lists, nil)
		}
		f.lists[i] = append(f.lists[i], l)
	}
	for _, l := range lists.Lists {
		add(l.Table, l)
		for _, c := range l.Columns {
			if c.Labels != nil {
				f.enums = append(f.enums, c.OID)
			}
		}
	}
	for _, table := range list.KeyTables {
		add(table, nil)
	}
	return f
}

// View takes a snapshot, then the position, in one statement: the commit
// records of everything that the snapshot sees are before the position.
func (p *primary) View(ctx context.Context, known string) (v View, err error) {
	f := &p.tables
	var relations, domains, bases []uint32
	var tables []int // for each relation, the table that it is or belongs to
	err = p.row(ctx, catalogSQL, known, PublicationName, f.schemas, f.names, f.enums)(
		&v.At, &v.Text, &v.Version, &relations, &tables, &domains, &bases)
	if err != nil {
		return v, fmt.Errorf("take a snapshot: %w", err)
	}
	v.Snapshot, err = changefeed.ParseSnapshot(v.Text)
	if err != nil {
		return v, err
	}
	p.decoder.reference = v.Snapshot.Xmax
	if v.Version == known {
		return v, nil
	}
	v.catalog = catalog{map[uint32][]*list.List{}, map[uint32]uint32{}}
	for i, oid := range relations {
		for _, l := range f.lists[tables[i]-1] {
			if !slices.Contains(v.catalog.lists[oid], l) { // a table may inherit from another in two ways
				v.catalog.lists[oid] = append(v.catalog.lists[oid], l)
			}
		}
	}
	for i, oid := range domains {
		v.catalog.bases[oid] = bases[i]
	}
	return v, nil
}
