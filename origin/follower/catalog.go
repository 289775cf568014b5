package follower

import (
	"context"
	_ "embed"
	"fmt"
	"slices"

	"github.com/jackc/pglogrepl"

	"listedge/internal/changefeed"
)

//go:embed catalog.sql
var catalogSQL string

// catalog is what the database's catalog says, to one snapshot, of what pages
// are read from.
//
// ALTER TABLE, ATTACH PARTITION and their like change what pages show, and are
// not in the stream of changes. So the statement that takes a heartbeat's
// snapshot reads the catalog's version. If it is another than before, the
// follower writes a message into the WAL that touches everything, and sends the
// heartbeat behind it. The rule of the heartbeats holds then: everything that
// the snapshot sees has been published. It needs no event trigger, which only a
// superuser may make.
//
// The same rule tells which relations to decode. Between two looks either the
// catalog stays the same, and so do the relations that pages are read from, or
// the message makes every page stale that was read before the later one. So a
// change of a relation that the catalog does not list is on no page that stays,
// if the later look sees it. One that it does not see yet (its commit waits for
// a standby) may be of a relation that was attached before it: see unlisted.
//
// One case is missed: a table with rows that is attached and detached (or made
// to inherit, and dropped) in two transactions, both between two heartbeats.
type catalog struct {
	version     string
	collections map[uint32]uint8 // of each relation, by oid: the collections that show its rows, a bit each
}

// view is a snapshot of the primary.
type view struct {
	at       pglogrepl.LSN // the end of the WAL, read after the snapshot was taken
	snapshot string
	catalog  catalog // without collections if it has the known version
}

// look takes a snapshot. The position comes after the snapshot, in the same
// statement: what the snapshot sees had its commit record inserted before.
func (p *primary) look(ctx context.Context, known string) (v view, err error) {
	var lsn string
	var relations []string
	if err := p.row(ctx, catalogSQL, known, PublicationName)(&lsn, &v.snapshot, &v.catalog.version, &relations); err != nil {
		return v, fmt.Errorf("take a snapshot: %w", err)
	}
	if v.at, err = pglogrepl.ParseLSN(lsn); err != nil {
		return v, err
	}
	if v.catalog.version != known {
		v.catalog.collections = map[uint32]uint8{}
	}
	for _, r := range relations {
		var oid uint32
		var table string
		if _, err := fmt.Sscan(r, &oid, &table); err != nil {
			return v, fmt.Errorf("read the catalog: %w", err)
		}
		v.catalog.collections[oid] |= 1 << collectionOf[table]
	}
	return v, nil
}

var collectionOf = map[string]changefeed.Collection{"items": changefeed.Items, "contacts": changefeed.Contacts, "api_keys": changefeed.Keys, "workspaces": changefeed.Keys}

// announceSchemaChange writes the message that touches everything, if changes can
// still be followed, and returns an end of the WAL behind its commit.
func (t *term) announceSchemaChange(ctx context.Context, c catalog) (end pglogrepl.LSN, err error) {
	if err := t.checkGround(ctx); err != nil {
		return 0, err
	}
	var lsn string
	if err = t.primary.row(ctx, `SELECT pg_logical_emit_message(true, $1, $2)::text`, MessagePrefix, schemaChanged)(&lsn); err == nil {
		err = t.primary.row(ctx, `SELECT pg_current_wal_insert_lsn()::text`)(&lsn)
	}
	if err == nil {
		end, err = pglogrepl.ParseLSN(lsn)
	}
	if err != nil {
		return 0, fmt.Errorf("announce a change of the schema: %w", err)
	}
	t.use(c)
	return end, nil
}

// unlisted are commits that changed a relation the catalog did not list, and that
// no look has seen yet.
type unlisted struct {
	commits []commit
	seen    changefeed.Snapshot // of the last look; the zero snapshot sees nothing
}

func (u *unlisted) add(c commit) {
	if c.unlisted && !u.seen.Sees(c.change.XID) {
		u.commits = append(u.commits, c)
	}
}

// look drops the commits that the snapshot sees and returns those that it does
// not see: if the catalog has changed, each of them may touch anything.
func (u *unlisted) look(snapshot changefeed.Snapshot) []commit {
	u.seen = snapshot
	u.commits = slices.DeleteFunc(u.commits, func(c commit) bool { return snapshot.Sees(c.change.XID) })
	return u.commits
}

func (t *term) use(c catalog) {
	t.version = c.version
	t.decoder.use(c.collections)
}
