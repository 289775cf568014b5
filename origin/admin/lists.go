package admin

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"listedge/internal/list"
	"listedge/internal/remedy"
	"listedge/origin/audit"
	"listedge/origin/follower"
	"listedge/origin/postgres"
)

//go:embed catalogue.sql
var catalogueSQL string

// ResolveLists makes the lists of a description, as the database at the URL has their tables. The error is
// list.Mistakes if they do not fit.
func ResolveLists(ctx context.Context, url string, d *list.Description) (*list.Set, error) {
	if d == list.BuiltInDescription() {
		return list.BuiltIn(), nil
	}
	conn, err := postgres.Connect(ctx, url, postgres.CommandTimeout) // a standby has the same catalogue
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	catalogue, err := readCatalogue(ctx, conn, d.Tables())
	if err != nil {
		return nil, err
	}
	return d.Resolve(catalogue)
}

// readCatalogue returns what the database says of tables.
func readCatalogue(ctx context.Context, db querier, tables []list.Name) (*list.Catalogue, error) {
	schemas, names := namesOf(tables)
	c := &list.Catalogue{}
	err := readJSON(ctx, db, &c.Relations, catalogueSQL, schemas, names)
	if err != nil {
		return nil, fmt.Errorf("read the catalogue: %w", err)
	}
	return c, nil
}

// readJSON reads the one value of a statement, which is JSON.
func readJSON(ctx context.Context, db querier, into any, sql string, args ...any) error {
	var text []byte
	err := db.QueryRow(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...).Scan(&text)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	return postgres.Classify(err)
}

// Step is one of the statements that make what a database lacks for its lists.
type Step struct {
	SQL   string `json:"sql"`
	Why   string `json:"why"`
	Locks string `json:"locks"` // whom it keeps waiting
}

// What steps lock.
const (
	locksNothing  = "nothing; it waits for transactions that are older"
	locksWrites   = "writes of the table, until the index is made"
	locksTable    = "reads and writes of the table, for a moment"
	locksNobody   = "no reads and no writes"
	momentaryLock = "5s" // how long a step waits for a lock: others wait behind it
)

//go:embed lists.sql
var listsSQL string

// listFacts is what lists.sql selects.
type listFacts struct {
	Functions               int  // how many of those that indexes call are there
	Publication, Operations bool // it is there, and publishes what nodes follow
	Tables                  []tableFacts
	Indexes                 []indexFacts
}

// table returns that of a name; nil = there is none.
func (f *listFacts) table(name list.Name) *tableFacts {
	i := slices.IndexFunc(f.Tables, func(t tableFacts) bool { return t.Name == name })
	if i < 0 {
		return nil
	}
	return &f.Tables[i]
}

type tableFacts struct {
	list.Name
	Partitioned       bool
	Named, Whole      bool     // the publication names it, and has all of its rows and columns
	Readers, Visitors []string // roles of nodes that may not read it, or not use its schema
	Columns           []string // tenant and key
	NotNull           bool     // those
	Leaves            []leafFacts
}

// leafFacts is a table that has rows: a partition, or the whole table.
type leafFacts struct {
	list.Name
	Direct   bool   // a partition of the table itself
	Identity bool   // its replica identity names tenant and key
	Primary  bool   // its primary key does
	Unique   string // the unique index that does; empty = none
}

type indexFacts struct {
	Schema, Name    string
	Valid, Attached bool
	Building        bool // another session is making it
}

// PlanLists returns what MissingOfLists does of the database at the URL.
func PlanLists(ctx context.Context, url string, lists *list.Set) ([]Step, error) {
	c, err := Open(ctx, url)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return MissingOfLists(ctx, c.conn, lists)
}

// MissingOfLists returns the steps that make what the database lacks for the lists; none = nothing. It changes nothing.
func MissingOfLists(ctx context.Context, db querier, lists *list.Set) ([]Step, error) {
	facts, err := readListFacts(ctx, db, lists.Tables(), lists)
	if err != nil {
		return nil, err
	}
	const functions = 3
	if facts.Functions < functions {
		return nil, remedy.Add(errors.New("the database lacks functions that indexes call"), migrateUp)
	}
	for _, name := range lists.Tables() {
		if facts.table(name) == nil {
			return nil, lacksTable(lists, name)
		}
	}
	p := planner{facts: facts}
	for _, t := range facts.Tables {
		p.identify(t)
	}
	for _, l := range lists.Lists {
		for _, index := range l.Indexes() {
			p.index(l, index)
		}
	}
	p.publish()
	for _, t := range facts.Tables {
		p.grant(t)
	}
	if p.building != "" {
		return nil, remedy.Add(fmt.Errorf("another session is making the index %s", p.building), "wait for it")
	}
	return p.steps, nil
}

// lacksTable is the error of a table of lists that is missing.
func lacksTable(lists *list.Set, name list.Name) error {
	do := "make it, or take its lists out of --lists"
	if lists.BuiltIn {
		do = migrateUp + orName
	}
	return remedy.Add(fmt.Errorf("the database lacks the table %s", name), do)
}

// readListFacts returns what the database has of tables, which have rows of the lists or none.
func readListFacts(ctx context.Context, db querier, tables []list.Name, lists *list.Set) (facts listFacts, err error) {
	type wanted struct {
		Schema  string   `json:"schema"`
		Name    string   `json:"name"`
		Columns []string `json:"columns"`
	}
	var all []wanted
	for _, name := range tables {
		t := wanted{name.Schema, name.Table, nil}
		for _, l := range lists.Lists {
			if l.Table != name {
				continue
			}
			for _, column := range l.Identity() {
				if !slices.Contains(t.Columns, column) {
					t.Columns = append(t.Columns, column)
				}
			}
		}
		all = append(all, t)
	}
	text, _ := json.Marshal(all) // has nothing that JSON cannot say
	err = readJSON(ctx, db, &facts, listsSQL, string(text), follower.PublicationName)
	if err != nil {
		return facts, fmt.Errorf("read what the lists have: %w", err)
	}
	return facts, nil
}

// planner collects the steps.
type planner struct {
	facts    listFacts
	steps    []Step
	building string // the name of an index that another session is making
}

func (p *planner) add(why, locks, format string, names ...any) {
	p.steps = append(p.steps, Step{fmt.Sprintf(format, names...), why, locks})
}

// find returns the index of a name; nil = there is none.
func (p *planner) find(schema, name string) *indexFacts {
	i := slices.IndexFunc(p.facts.Indexes, func(x indexFacts) bool { return x.Schema == schema && x.Name == name })
	if i < 0 {
		return nil
	}
	return &p.facts.Indexes[i]
}

// make makes an index beside the writers, unless it is there and valid. An invalid one is what a step has left that
// failed. sql is what follows its name.
func (p *planner) make(schema, name, kind, sql, why string) {
	x := p.find(schema, name)
	if x != nil && x.Valid {
		return
	}
	if x != nil && x.Building {
		p.building = name
	}
	if x != nil {
		p.add("an earlier step has not finished this index", locksNothing, "DROP INDEX CONCURRENTLY %s", list.Name{Schema: schema, Table: name}.SQL())
	}
	p.add(why, locksNothing, "CREATE %s CONCURRENTLY %s %s", kind, list.Quote(name), sql)
}

// identify has updates and deletes of a table say where the row was.
func (p *planner) identify(t tableFacts) {
	const why = "an update or a delete must say which row of which tenant was changed"
	for _, leaf := range t.Leaves {
		table := leaf.SQL()
		switch {
		case leaf.Identity:
		case leaf.Primary:
			p.add(why, locksTable, "ALTER TABLE %s REPLICA IDENTITY DEFAULT", table)
		case leaf.Unique != "":
			p.add(why, locksTable, "ALTER TABLE %s REPLICA IDENTITY USING INDEX %s", table, list.Quote(leaf.Unique))
		case t.NotNull && !t.Partitioned:
			index := named(leaf.Name, "identity", t.Columns...)
			p.make(leaf.Schema, index, "UNIQUE INDEX", fmt.Sprintf("ON %s (%s)", table, list.Quoted(t.Columns...)), why)
			p.add(why, locksTable, "ALTER TABLE %s REPLICA IDENTITY USING INDEX %s", table, list.Quote(index))
		default: // a key without NULLs has to be unique in each partition, and no index can say so
			p.add(why+"; the whole row, since the tenant may be NULL or the table has partitions", locksTable, "ALTER TABLE %s REPLICA IDENTITY FULL", table)
		}
	}
}

// named returns the name of an index of a table, which tells it from those with other words.
func named(table list.Name, what string, words ...string) string {
	return list.NameOf(table.Table, "_"+what, strings.Join(append(words, table.SQL()), "\x00"))
}

// index makes an index of a list.
func (p *planner) index(l *list.List, index list.Index) {
	t := p.facts.table(l.Table)
	why := "pages of the list " + l.Name + " are read by it"
	x := p.find(l.Table.Schema, index.Name)
	whole := list.Name{Schema: l.Table.Schema, Table: index.Name}.SQL()
	switch {
	case x != nil && x.Valid:
		return
	case !t.Partitioned:
		p.make(l.Table.Schema, index.Name, "INDEX", index.SQL, why)
		if index.Then != "" {
			p.add("ANALYZE need not look at it", locksNobody, "%s", index.Then)
		}
		return
	case slices.ContainsFunc(t.Leaves, func(leaf leafFacts) bool { return !leaf.Direct }):
		if x != nil {
			p.add("an earlier step has not finished this index", locksTable, "DROP INDEX %s", whole)
		}
		p.add(why, locksWrites, "CREATE INDEX %s %s", list.Quote(index.Name), index.SQL)
		return
	}
	// Beside the writers an index of a partitioned table is made partition by partition.
	on := "ON " + l.Table.SQL()
	if x == nil {
		p.add(why, locksTable, "CREATE INDEX %s ON ONLY %s", list.Quote(index.Name), strings.TrimPrefix(index.SQL, "ON "))
	}
	for _, leaf := range t.Leaves {
		name := named(leaf.Name, "of", index.Name)
		part := p.find(leaf.Schema, name)
		if part != nil && part.Attached {
			continue
		}
		p.make(leaf.Schema, name, "INDEX", "ON "+leaf.SQL()+strings.TrimPrefix(index.SQL, on), why)
		p.add(why, locksNobody, "ALTER INDEX %s ATTACH PARTITION %s", whole, list.Name{Schema: leaf.Schema, Table: name}.SQL())
	}
}

// publish has the publication publish all changes of the tables, of each whole: with a list of columns, Postgres refuses to change
// the type of a listed column or to drop it and, while the replica identity is the whole row, every update and delete.
func (p *planner) publish() {
	const why, operations = "nodes follow the changes of its tables", "publish = 'insert, update, delete, truncate', publish_via_partition_root = false"
	publication := list.Quote(follower.PublicationName)
	var lacks []string
	for _, t := range p.facts.Tables {
		if t.Whole && p.facts.Publication {
			continue
		}
		lacks = append(lacks, t.SQL())
		if t.Named {
			p.add("the publication has not all rows and columns of it", locksNobody, "ALTER PUBLICATION %s DROP TABLE %s", publication, t.SQL())
		}
	}
	switch {
	case !p.facts.Publication:
		for _, t := range list.KeyTables {
			if !slices.Contains(lacks, t.SQL()) {
				lacks = append(lacks, t.SQL())
			}
		}
		p.add(why, locksNobody, "CREATE PUBLICATION %s FOR TABLE %s WITH (%s)", publication, strings.Join(lacks, ", "), operations)
		return
	case !p.facts.Operations:
		p.add(why, locksNobody, "ALTER PUBLICATION %s SET (%s)", publication, operations)
	}
	if len(lacks) > 0 {
		p.add(why, locksNobody, "ALTER PUBLICATION %s ADD TABLE %s", publication, strings.Join(lacks, ", "))
	}
}

// grant lets the roles of nodes read a table.
func (p *planner) grant(t tableFacts) {
	for _, role := range t.Visitors {
		sql := fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", list.Quote(t.Schema), list.Quote(role))
		if !slices.ContainsFunc(p.steps, func(s Step) bool { return s.SQL == sql }) {
			p.add("nodes read tables in it", locksNobody, "%s", sql)
		}
	}
	for _, role := range t.Readers {
		p.add("nodes read it", locksNobody, "GRANT SELECT ON %s TO %s", t.SQL(), list.Quote(role))
	}
}

// ApplyLists makes what the database lacks for the lists. It calls say before each step. What is made stays if a later
// step fails, and the next call goes on from there. The audit log has what was done.
func ApplyLists(ctx context.Context, url string, lists *list.Set, say func(Step)) error {
	c, err := Open(ctx, url)
	if err != nil {
		return err
	}
	defer c.Close()
	err = c.lockLists(ctx)
	if err != nil {
		return err
	}
	steps, err := MissingOfLists(ctx, c.conn, lists)
	if err != nil || len(steps) == 0 {
		return err
	}
	var done []string
	for _, s := range steps {
		say(s)
		err = c.apply(ctx, s)
		if err != nil {
			break
		}
		done = append(done, s.SQL)
	}
	if len(done) == 0 {
		return err
	}
	_, failed := act(ctx, c, func(pgx.Tx) (_ struct{}, a audit.Act, _ error) {
		return struct{}{}, audit.Act{Action: "lists.apply", Details: map[string]any{"lists": lists.Names(), "steps": len(done), "first": short(done[0])}}, nil
	})
	return errors.Join(err, failed)
}

// lockLists waits until no other program applies lists, for the session. It asks again and again: what waits in a statement would
// be waited for by indexes that are made CONCURRENTLY.
func (c *Conn) lockLists(ctx context.Context) (err error) {
	for locked := false; !locked && err == nil; {
		err = c.conn.QueryRow(ctx, `SELECT pg_try_advisory_lock(7235117)`).Scan(&locked)
		if err == nil && !locked {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
	if err != nil {
		return fmt.Errorf("wait for another that applies lists: %w", postgres.Classify(err))
	}
	return nil
}

// apply runs one step. What is made beside writers waits for old transactions, however long they last; what
// locks a table does not, since all others would wait behind it.
func (c *Conn) apply(ctx context.Context, s Step) error {
	wait := momentaryLock
	if s.Locks == locksNothing {
		wait = "0"
	}
	for _, sql := range []string{"SET lock_timeout = '" + wait + "'", s.SQL} {
		_, err := c.conn.PgConn().Exec(ctx, sql).ReadAll()
		switch {
		case postgres.Code(err) == "55P03": // lock_not_available
			return remedy.Add(fmt.Errorf("%s: another transaction has used the table for %s", s.SQL, wait), "run this again")
		case err != nil:
			return fmt.Errorf("%s: %w", s.SQL, postgres.Classify(err))
		}
	}
	return nil
}
