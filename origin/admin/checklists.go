package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"listedge/internal/list"
	"listedge/origin/apikey"
	"listedge/origin/postgres"
)

// What is too much of a row that clients see.
const (
	MaxTextSize   = 64 << 10 // bytes of a value: with longer ones a page takes long, and ends before its limit
	MaxRowSize    = 4 << 20  // bytes of all values that are read: a node reads no longer row
	blocksAtATime = 256      // of a table, in one statement
)

// Fault is a row of a list that clients cannot see, or not as they should.
type Fault struct {
	List   string `json:"list"`
	Tenant string `json:"tenant"` // empty in a list without tenants
	Key    string `json:"key"`
	Why    string `json:"why"`
}

// Checked is what CheckLists has read of a list.
type Checked struct {
	List   string `json:"list"`
	Rows   int    `json:"rows"`   // of the table
	Live   int    `json:"live"`   // that some client may see
	Nobody int    `json:"nobody"` // of those the ones that belong to no workspace
	Faults int    `json:"faults"`
}

// CheckLists reads all rows of the lists, as nodes would, and calls report for each that clients cannot see. It reads some
// blocks of a table in each statement, so it keeps no snapshot: a row that changes meanwhile may be read twice, or not.
func CheckLists(ctx context.Context, c *Conn, lists *list.Set, report func(Fault)) (all []Checked, err error) {
	rows, _ := c.conn.Query(ctx, `SELECT `+apikey.TenantSQL+` FROM workspaces`)
	tenants, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read the workspaces: %w", postgres.WithSchemaHint(err))
	}
	facts, err := readListFacts(ctx, c.conn, lists.Tables(), lists)
	if err != nil {
		return nil, err
	}
	for _, l := range lists.Lists {
		r := rowChecker{list: l, known: map[string]bool{}, Checked: Checked{List: l.Name}}
		r.report = func(f Fault) {
			r.Faults++
			report(f)
		}
		for _, tenant := range tenants {
			r.known[tenant] = true
		}
		table := facts.table(l.Table)
		if table == nil {
			return nil, lacksTable(lists, l.Table)
		}
		for _, leaf := range table.Leaves {
			err = errors.Join(err, r.read(ctx, c.conn, leaf.Name))
		}
		if table.Partitioned && err == nil {
			err = r.readTwice(ctx, c.conn)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", l.Table, postgres.Classify(err))
		}
		all = append(all, r.Checked)
	}
	return all, nil
}

// rowChecker checks the rows of a list.
type rowChecker struct {
	Checked
	list   *list.List
	known  map[string]bool // tenants of workspaces
	report func(Fault)
}

// read checks the rows of a table, or of a partition.
func (r *rowChecker) read(ctx context.Context, conn *pgx.Conn, table list.Name) error {
	var columns []string
	for _, c := range r.list.Columns {
		columns = append(columns, c.Name)
	}
	blocks := 0
	err := conn.QueryRow(ctx, `SELECT pg_relation_size($1::regclass) / current_setting('block_size')::int`, table.SQL()).Scan(&blocks)
	for from := 0; from < blocks && err == nil; from += blocksAtATime {
		sql := fmt.Sprintf("SELECT %s FROM ONLY %s WHERE ctid >= '(%d,0)' AND ctid < '(%d,0)'", list.Quoted(columns...), table.SQL(), from, from+blocksAtATime)
		result := conn.PgConn().ExecParams(ctx, sql, nil, nil, nil, nil) // all values are texts
		for result.NextRow() {
			r.check(result.Values())
		}
		_, err = result.Close()
	}
	return err
}

// check reports what is wrong with a row.
func (r *rowChecker) check(values [][]byte) {
	l := r.list
	r.Rows++
	live, _ := l.Lives(values, nil)
	if !live {
		return
	}
	r.Live++
	f := Fault{List: l.Name, Key: string(values[l.Key])}
	if l.Tenant >= 0 {
		f.Tenant = string(values[l.Tenant])
		if values[l.Tenant] == nil || !r.known[f.Tenant] {
			r.Nobody++
		}
	}
	size := 0
	for i, v := range values[:l.Selected] {
		size += len(v)
		if len(v) > MaxTextSize && i < len(l.Fields) {
			f.Why = "the field " + l.Fields[i].Name + " has " + strconv.Itoa(len(v)) + " bytes: its pages take long, and end before their limit"
			r.report(f)
		}
	}
	asNull, unshown := l.Faults(values[:l.Selected])
	if len(asNull) > 0 {
		f.Why = "JSON cannot say a value: " + strings.Join(asNull, ", ") + ": null is shown"
		r.report(f)
	}
	switch {
	case size > MaxRowSize:
		f.Why = "it has " + strconv.Itoa(size) + " bytes: no page with it can be read"
	case len(unshown) > 0:
		f.Why = list.ErrBounds.Error() + ": " + strings.Join(unshown, ", ") + ": a page with it is an error"
	default:
		return
	}
	r.report(f)
}

// readTwice reports keys that are in the list twice: the unique indexes of a partitioned table do not exclude that.
func (r *rowChecker) readTwice(ctx context.Context, conn *pgx.Conn) error {
	l := r.list
	tenant, key := "''::text", list.Quote(l.Columns[l.Key].Name)
	if l.Tenant >= 0 {
		tenant = list.Quote(l.Columns[l.Tenant].Name)
	}
	rows, _ := conn.Query(ctx, fmt.Sprintf("SELECT %[1]s::text, %[2]s::text, count(*) FROM %[3]s WHERE %[1]s IS NOT NULL "+
		"GROUP BY %[1]s, %[2]s HAVING count(*) > 1", tenant, key, l.Table.SQL()))
	f, n := Fault{List: l.Name}, 0
	_, err := pgx.ForEachRow(rows, []any{&f.Tenant, &f.Key, &n}, func() error {
		f.Why = strconv.Itoa(n) + " rows have this key: walks may leave some out"
		r.report(f)
		return nil
	})
	return err
}

// InitLists writes a first description of tables: see list.Draft.
func InitLists(ctx context.Context, c *Conn, tables []list.Name) (string, error) {
	catalogue, err := readCatalogue(ctx, c.conn, tables)
	if err != nil {
		return "", err
	}
	found := &list.Catalogue{}
	for _, name := range tables { // in their order
		i := slices.IndexFunc(catalogue.Relations, func(r list.Relation) bool { return r.Name == name })
		if i < 0 {
			return "", fmt.Errorf("there is no table %s: write schema.table, with capitals as the database has them", name)
		}
		found.Relations = append(found.Relations, catalogue.Relations[i])
	}
	return list.Draft(found), nil
}
