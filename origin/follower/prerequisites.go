package follower

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/internal/lists"
	"listedge/origin/postgres"
)

// checkPrerequisites returns an error if changes cannot be followed here. It sets
// checkpointerStart and published:
//
//   - checkpointerStart changes with a crash, after which transaction ids may be used again,
//     a fail-over and a restore. It is when the checkpointer was started, if the user may see
//     that (pg_read_all_stats), or else when the statistics began, which a crash discards.
//   - published changes with the publication, and if the schema public is replaced: changes
//     that were written meanwhile may never be sent.
func (p *primary) checkPrerequisites(ctx context.Context) error {
	var level, standbys, publishing string
	var standby bool
	var started *string
	err := p.row(ctx, `SELECT `+WALLevelSQL+`, current_setting('synchronous_standby_names'), pg_is_in_recovery(),
		coalesce((SELECT extract(epoch FROM max(backend_start))::text FROM pg_stat_activity WHERE backend_type = 'checkpointer'),
			(SELECT concat(extract(epoch FROM pg_postmaster_start_time()), '/', extract(epoch FROM stats_reset)) FROM pg_stat_bgwriter WHERE stats_reset IS NOT NULL)),
		(SELECT coalesce(string_agg(concat_ws('/', x.oid, x.xmin), ' ' ORDER BY x.oid), '') FROM (
			SELECT oid, xmin::text FROM pg_publication WHERE pubname = $1
			UNION ALL SELECT r.oid, r.xmin::text FROM pg_publication_rel r JOIN pg_publication p ON p.oid = prpubid WHERE pubname = $1
			UNION ALL SELECT objid, d.xmin::text FROM pg_publication p JOIN pg_depend d ON refclassid = 'pg_publication'::regclass AND refobjid = p.oid
				WHERE pubname = $1 AND classid = 'pg_publication_namespace'::regclass
			UNION ALL SELECT oid, 'schema' FROM pg_namespace WHERE nspname = 'public' AND oid <> 2200) x)`, // 2200 is the schema that every database is made with
		PublicationName)(&level, &standbys, &standby, &started, &publishing)
	switch {
	case err != nil:
		return fmt.Errorf("check the prerequisites: %w", err)
	case standby:
		return fmt.Errorf("%w: the database URL leads to a standby, not to the primary", ErrIncapable)
	case level != "logical":
		return fmt.Errorf("%w: wal_level is %s, not logical", ErrIncapable, level)
	case started == nil:
		return fmt.Errorf("%w: the server does not tell this user when its statistics began (GRANT pg_read_all_stats)", ErrIncapable)
	}
	if countsAsStandby.MatchString(standbys) {
		// Commits would wait for the follower, which confirms seconds later.
		return fmt.Errorf("%w: synchronous_standby_names is %s, which makes the follower a standby that commits wait for (name the standbys)", ErrIncapable, standbys)
	}
	p.checkpointerStart, p.published = *started, publishing
	return p.checkPublication(ctx)
}

// WALLevelSQL is the level of WAL that a slot has, or that it would get: since Postgres 19 wal_level
// is only what there is at least, and the first logical slot raises what is in force, unless that is minimal.
const WALLevelSQL = `CASE WHEN current_setting('effective_wal_level', true) <> 'minimal' THEN 'logical' ELSE current_setting('wal_level') END`

// countsAsStandby matches a value of synchronous_standby_names that includes any
// standby, or one with the name of this connection.
var countsAsStandby = regexp.MustCompile(`(?:^|[\s,(])(?:\*|"\*"|"` + applicationName + `")(?:[\s,)]|$)`)

// errIncomplete says that the publication lacks rows that pages show. Changes that are
// written meanwhile are lost. So the slot is dropped, and the next slot begins a new epoch.
var errIncomplete = fmt.Errorf("%w: the publication %q", ErrIncapable, PublicationName)

// checkPublication returns errIncomplete if the publication has a defect.
//
// It returns a defect only if it has found one three times in a row. The statement reads
// some catalogs by its snapshot and others as they are now, so a partition that is
// committed meanwhile seems to be missing. Trying again is safe: if the publication was
// another one in between, published shows that.
func (p *primary) checkPublication(ctx context.Context) error {
	var defect, remedy string
	for range 3 {
		publication, err := call(ctx, func(ctx context.Context) (Publication, error) { return ReadPublication(ctx, p.conn) })
		if err != nil {
			return err
		}
		if defect, remedy = publication.Defect(); defect == "" {
			p.publication = publication
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	return fmt.Errorf("%w %s: %s", errIncomplete, defect, remedy)
}

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
