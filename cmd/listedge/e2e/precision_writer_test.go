package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

// The writers of the page oracle. Together they change rows in every way.

// pageWriter writes to all workspaces.
type pageWriter struct {
	conn   *pgx.Conn
	random *rand.Rand
	oracle *pageOracle
	other  int // makes each value another one
}

// randomName returns a name. Many names are equal, begin alike, or differ only by case.
func randomName(r *rand.Rand) string {
	letters := []rune("aAbäÄ\u0301éчайЧß1 -\u00ad茶한")
	name := make([]rune, 1+r.IntN(4))
	for i := range name {
		name[i] = pick(r, letters)
	}
	if r.IntN(12) == 0 { // the same in what orders it, or just not
		name = append([]rune(strings.Repeat("ab", 38)), name...)
		name = append(name, []rune(strings.Repeat("x", r.IntN(8)))...)
	}
	return string(name)
}

// randomTime returns one of few times, so many rows have the same.
func randomTime(r *rand.Rand) time.Time {
	return time.Date(2026, 1, 1, 0, 0, 0, r.IntN(60)*int(time.Millisecond), time.UTC)
}

// columnsOf are a collection's columns that a row is made of, and their values.
func (w *pageWriter) row(c lists.Collection) (columns []string, values []any) {
	r := w.random
	add := func(column string, value any) { columns, values = append(columns, column), append(values, value) }
	for _, column := range c.Columns() {
		switch nullable := column.Nullable && r.IntN(4) == 0; {
		case column.Name == "name":
			add(column.Name, randomName(r))
		case column.Name == "active":
			add(column.Name, r.IntN(8) > 0)
		case column.Name == "type":
			add(column.Name, pick(r, []string{"GOODS", "SERVICE"}))
		case nullable:
			add(column.Name, nil)
		case column.Kind == lists.Text:
			add(column.Name, pick(r, []string{"", "abc", "ABC", "xaby", "Äb", "чай"}))
		case column.Kind == lists.Decimal:
			add(column.Name, pick(r, []string{"0", "1", "1.0", "2", "-1", "10.00"}))
		case column.Kind == lists.Number:
			add(column.Name, r.IntN(100))
		case column.Kind == lists.Bool:
			add(column.Name, r.IntN(2) == 0)
		case column.Kind == lists.Instant:
			add(column.Name, randomTime(r))
		}
	}
	return columns, values
}

// plain are the columns of a kind that neither a search nor a filter compares.
func plain(c lists.Collection, kind lists.Kind) (names []string) {
	for _, of := range c.Columns() {
		if of.Kind == kind && !slices.Contains(c.Searched(), of.Name) && !c.IsFilteredBy(of.Name) {
			names = append(names, of.Name)
		}
	}
	return names
}

// ways are the ways to write. Each of them writes one list; the last ones write
// others, too.
var ways = map[string]func(w *pageWriter, ctx context.Context, tx pgx.Tx, list changefeed.List) error{
	"insert": func(w *pageWriter, ctx context.Context, tx pgx.Tx, l changefeed.List) error {
		return w.insert(ctx, tx, l, randomID(w.random))
	},
	"delete":        (*pageWriter).remove,
	"update":        (*pageWriter).update,
	"count":         (*pageWriter).count,
	"rename":        (*pageWriter).rename,
	"again":         (*pageWriter).again,
	"replace":       (*pageWriter).replace,
	"id":            (*pageWriter).anotherID,
	"move":          (*pageWriter).move,
	"savepoint":     (*pageWriter).savepoint,
	"long":          (*pageWriter).long,
	"copy":          (*pageWriter).copyIn,
	"many":          (*pageWriter).many,
	"truncate":      (*pageWriter).truncate,
	"another table": (*pageWriter).definition,
}

// usualWays says how often each of the ways is taken.
var usualWays = func() (all []string) {
	often := map[string]int{"insert": 12, "delete": 10, "update": 24, "count": 12, "rename": 16, "again": 8, "replace": 4, "id": 4, "move": 8, "savepoint": 4,
		"long": 2, "copy": 2}
	for way := range ways {
		for range max(1, often[way]) {
			all = append(all, way)
		}
	}
	return all
}()

func table(l changefeed.List) string { return lists.Collection(l.Collection).String() }

// some are the ids of a few rows, mostly of one.
func (w *pageWriter) some(ctx context.Context, tx pgx.Tx, l changefeed.List, n int) (ids []uuid.UUID, err error) {
	rows, err := tx.Query(ctx, "SELECT id FROM "+table(l)+" WHERE workspace_id = $1 ORDER BY md5(id::text || $2) LIMIT $3", l.Workspace,
		fmt.Sprint(w.random.Uint64()), n)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

func (w *pageWriter) few() int { return 1 + max(0, w.random.IntN(6)-3) }

func (w *pageWriter) insert(ctx context.Context, tx pgx.Tx, l changefeed.List, id uuid.UUID) error {
	columns, values := w.row(lists.Collection(l.Collection))
	columns, values = append(columns, "id", "workspace_id"), append(values, id, l.Workspace)
	var parameters []string
	for i := range columns {
		parameters = append(parameters, fmt.Sprintf("$%d", i+1))
	}
	_, err := tx.Exec(ctx, fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", table(l), strings.Join(columns, ", "), strings.Join(parameters, ", ")), values...)
	return err
}

// each does something to n rows, one after the other.
func (w *pageWriter) each(ctx context.Context, tx pgx.Tx, l changefeed.List, n int, do func(id uuid.UUID) error) error {
	ids, err := w.some(ctx, tx, l, n)
	for _, id := range ids {
		if err := do(id); err != nil {
			return err
		}
	}
	return err
}

func (w *pageWriter) remove(ctx context.Context, tx pgx.Tx, l changefeed.List) error {
	return w.each(ctx, tx, l, w.few(), func(id uuid.UUID) error { return w.exec(ctx, tx, "DELETE FROM "+table(l)+" WHERE id = $1", id) })
}

func (w *pageWriter) exec(ctx context.Context, tx pgx.Tx, sql string, args ...any) error {
	_, err := tx.Exec(ctx, sql, args...)
	return err
}

// update gives each of a few rows another value in one column, or in some.
func (w *pageWriter) update(ctx context.Context, tx pgx.Tx, l changefeed.List) error {
	return w.each(ctx, tx, l, w.few(), func(id uuid.UUID) error {
		columns, values := w.row(lists.Collection(l.Collection))
		from := w.random.IntN(len(columns))
		to := from + 1 + w.random.IntN(2)*w.random.IntN(len(columns)-from)
		return w.set(ctx, tx, l, id, columns[from:to], values[from:to])
	})
}

func (w *pageWriter) set(ctx context.Context, tx pgx.Tx, l changefeed.List, id uuid.UUID, columns []string, values []any) error {
	var sets []string
	for i, column := range columns {
		sets = append(sets, fmt.Sprintf("%s = $%d", column, i+2))
	}
	return w.exec(ctx, tx, fmt.Sprintf("UPDATE %s SET %s WHERE id = $1", table(l), strings.Join(sets, ", ")), append([]any{id}, values...)...)
}

// setOne writes another value into one column of a few rows.
func (w *pageWriter) setOne(ctx context.Context, tx pgx.Tx, l changefeed.List, n int, column string, value func() any) error {
	return w.each(ctx, tx, l, n, func(id uuid.UUID) error { return w.set(ctx, tx, l, id, []string{column}, []any{value()}) })
}

// count writes a number into a column that moves no row in a list, which is the most usual update.
func (w *pageWriter) count(ctx context.Context, tx pgx.Tx, l changefeed.List) error {
	column := pick(w.random, append(plain(l.Collection, lists.Decimal), plain(l.Collection, lists.Text)...))
	return w.setOne(ctx, tx, l, w.few(), column, func() any { w.other++; return fmt.Sprint(w.other) })
}

func (w *pageWriter) rename(ctx context.Context, tx pgx.Tx, l changefeed.List) error {
	return w.setOne(ctx, tx, l, w.few(), "name", func() any { return randomName(w.random) })
}

func (w *pageWriter) anotherID(ctx context.Context, tx pgx.Tx, l changefeed.List) error {
	return w.setOne(ctx, tx, l, 1, "id", func() any { return randomID(w.random) })
}

// move moves rows from their workspace to the next one.
func (w *pageWriter) move(ctx context.Context, tx pgx.Tx, l changefeed.List) error {
	return w.setOne(ctx, tx, l, w.few(), "workspace_id", func() any { return w.beside(l).Workspace })
}

// again changes one row twice.
func (w *pageWriter) again(ctx context.Context, tx pgx.Tx, l changefeed.List) error {
	return w.each(ctx, tx, l, 1, func(id uuid.UUID) error {
		for range 2 {
			columns, values := w.row(lists.Collection(l.Collection))
			if err := w.set(ctx, tx, l, id, columns, values); err != nil {
				return err
			}
		}
		switch w.random.IntN(4) {
		case 0:
			return w.exec(ctx, tx, "DELETE FROM "+table(l)+" WHERE id = $1", id)
		case 1:
			return w.exec(ctx, tx, "UPDATE "+table(l)+" SET active = NOT active WHERE id = $1", id)
		}
		return nil
	})
}

// replace deletes a row and inserts another with its id.
func (w *pageWriter) replace(ctx context.Context, tx pgx.Tx, l changefeed.List) error {
	return w.each(ctx, tx, l, 1, func(id uuid.UUID) error {
		if err := w.exec(ctx, tx, "DELETE FROM "+table(l)+" WHERE id = $1", id); err != nil {
			return err
		}
		return w.insert(ctx, tx, l, id)
	})
}

func (w *pageWriter) beside(l changefeed.List) changefeed.List {
	i := slices.IndexFunc(w.oracle.workspaces, func(of pageWorkspace) bool { return of.id == l.Workspace })
	return changefeed.List{Workspace: w.oracle.workspaces[i^1].id, Collection: l.Collection}
}

// savepoint rolls back a part of its transaction.
func (w *pageWriter) savepoint(ctx context.Context, tx pgx.Tx, l changefeed.List) error {
	for _, end := range []string{"ROLLBACK TO s", "RELEASE s"} {
		if _, err := tx.Exec(ctx, "SAVEPOINT s"); err != nil {
			return err
		}
		if err := pick(w.random, []func(*pageWriter, context.Context, pgx.Tx, changefeed.List) error{
			(*pageWriter).update, (*pageWriter).remove, (*pageWriter).again})(w, ctx, tx, l); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, end); err != nil {
			return err
		}
	}
	return w.update(ctx, tx, l)
}

// long writes long values. Postgres stores these apart from their rows, and does not send
// them if an update changes another column. Some of them the log carries, others are too long for it.
func (w *pageWriter) long(ctx context.Context, tx pgx.Tx, l changefeed.List) error {
	ids, err := w.some(ctx, tx, l, 2)
	for i, id := range ids {
		column := []string{"name", pick(w.random, l.Collection.Searched())}[i]
		_, err := tx.Exec(ctx, "UPDATE "+table(l)+" SET "+column+" = (SELECT string_agg(md5($2 || n::text), '') FROM generate_series(1, $3) n) WHERE id = $1", id,
			fmt.Sprint(w.random.Uint64()), 70+w.random.IntN(230))
		if err != nil {
			return err
		}
	}
	return err
}

func (w *pageWriter) copyIn(ctx context.Context, tx pgx.Tx, l changefeed.List) error {
	var rows [][]any
	for range 1 + w.random.IntN(w.oracle.workspace(l.Workspace).rows*2/5) {
		rows = append(rows, []any{randomID(w.random), l.Workspace, randomName(w.random), randomTime(w.random)})
	}
	_, err := tx.CopyFrom(ctx, pgx.Identifier{table(l)}, []string{"id", "workspace_id", "name", "created_at"}, pgx.CopyFromRows(rows))
	return err
}

func (w *pageWriter) many(ctx context.Context, tx pgx.Tx, l changefeed.List) error {
	ids, err := w.some(ctx, tx, l, 60+w.random.IntN(30))
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "UPDATE "+table(l)+" SET name = left(reverse(name), 100), active = NOT active WHERE id = ANY($1)", ids)
	return err
}

// truncate empties a table and inserts a part of its rows again.
func (w *pageWriter) truncate(ctx context.Context, tx pgx.Tx, l changefeed.List) error {
	for _, statement := range []string{
		"LOCK TABLE " + table(l) + " IN ACCESS EXCLUSIVE MODE",
		"CREATE TEMP TABLE kept ON COMMIT DROP AS SELECT * FROM " + table(l) + " WHERE random() < 0.9",
		"TRUNCATE " + table(l),
		"INSERT INTO " + table(l) + " SELECT * FROM kept",
	} {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// definition changes the table, and with it all rows.
func (w *pageWriter) definition(ctx context.Context, tx pgx.Tx, l changefeed.List) error {
	w.other++
	column := plain(l.Collection, lists.Text)[0]
	_, err := tx.Exec(ctx, fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s TYPE text USING coalesce(%s, '') || '%d'", table(l), column, column, w.other))
	return err
}

// step writes one transaction. If two writers block each other, one transaction is rolled back.
func (w *pageWriter) step(ctx context.Context) error {
	way := pick(w.random, usualWays)
	list := changefeed.List{Workspace: pick(w.random, w.oracle.workspaces).id, Collection: lists.Collection(w.random.IntN(2))}
	err := pgx.BeginFunc(ctx, w.conn, func(tx pgx.Tx) error {
		var rows int
		if err := tx.QueryRow(ctx, "SELECT count(*) FROM "+table(list)+" WHERE workspace_id = $1", list.Workspace).Scan(&rows); err != nil {
			return err
		}
		switch usual := w.oracle.workspace(list.Workspace).rows; {
		case rows > usual*5/4:
			way = "delete"
		case rows < usual*3/4:
			way = "copy"
		}
		if err := ways[way](w, ctx, tx, list); err != nil {
			return err
		}
		pause(4 * time.Millisecond) // other transactions begin and end meanwhile
		return nil
	})
	if err == nil {
		w.oracle.committed(way)
	}
	return err
}
