package follower

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/jackc/pglogrepl"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

//go:embed catalog.sql
var catalogSQL string

// view is a snapshot of the primary, and the relations that pages are read from, as the same
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
type view struct {
	at          pglogrepl.LSN // the end of the WAL, read after the snapshot was taken
	snapshot    changefeed.Snapshot
	text        string                      // the snapshot, as Postgres writes it
	version     string                      // of the catalog
	collections map[uint32]lists.Collection // by the oid of a relation: which one shows its rows; nil if the version is the known one
}

// readView takes a snapshot, then the position, in one statement: the commit
// records of everything that the snapshot sees are before the position.
func readView(ctx context.Context, p *primary, known string) (v view, err error) {
	var relations []uint32
	var tables []string // for each relation, the table of a list that it is or belongs to
	if err := p.row(ctx, catalogSQL, known, PublicationName, lists.Tables())(&v.at, &v.text, &v.version, &relations, &tables); err != nil {
		return v, fmt.Errorf("take a snapshot: %w", err)
	}
	v.snapshot, err = changefeed.ParseSnapshot(v.text)
	if err != nil {
		return v, err
	}
	if v.version != known {
		v.collections = map[uint32]lists.Collection{}
	}
	for i, oid := range relations {
		v.collections[oid] = lists.Of(tables[i])
	}
	return v, nil
}
