package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"listedge/internal/list"
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
func randomTime(r *rand.Rand) string {
	return time.Date(2026, 1, 1, 0, 0, 0, r.IntN(60)*int(time.Millisecond), time.UTC).Format("2006-01-02 15:04:05.999-07")
}

// rowsOf are rows of a list: those of a tenant, or all.
type rowsOf struct {
	*list.List
	tenant string // empty = the list has no tenants
}

func (l rowsOf) table() string { return l.Table.SQL() }

func (l rowsOf) key() string { return list.Quote(l.Columns[l.Key].Name) }

// own is the condition of the rows.
func (l rowsOf) own() string {
	if l.Tenant < 0 {
		return "true"
	}
	return list.Quote(l.Columns[l.Tenant].Name) + " = '" + l.tenant + "'"
}

// folded is the column of the order by the fold; -1 = there is none.
func (l rowsOf) folded() int {
	i := slices.IndexFunc(l.Orders, func(o list.Order) bool { return o.Fold })
	if i < 0 {
		return -1
	}
	return l.Orders[i].Column
}

// plain are the columns of these types that move no row in a list, and that no search compares.
func (l rowsOf) plain(bases ...string) (columns []int) {
	conditions := l.Live.String()
	for _, f := range l.Filters {
		for _, v := range f.Values {
			conditions += " " + v.Keep.String()
		}
	}
	for i := range l.Fields {
		ordered := slices.ContainsFunc(l.Orders, func(o list.Order) bool { return o.Column == i })
		if c := l.Columns[i]; i != l.Key && !ordered && !slices.Contains(l.Search, i) && slices.Contains(bases, c.Base) && !strings.Contains(conditions, c.Name) {
			columns = append(columns, i)
		}
	}
	return columns
}

// row is the columns of a new row, and their values.
func (w *pageWriter) row(l rowsOf, key string) (columns []string, values []any) {
	for i, c := range l.Columns {
		name := list.Quote(c.Name)
		if slices.Contains(columns, name) {
			continue
		}
		value := w.oracle.randomValue(w.random, l.List, i)
		switch i {
		case l.Key:
			value = key
		case l.Tenant:
			value = l.tenant
		}
		columns, values = append(columns, name), append(values, value)
	}
	return columns, values
}

func (w *pageWriter) newKey(l rowsOf) string { return randomKey(w.random, l.Columns[l.Key].Base) }

// ways are the ways to write. Each of them writes one list; the last ones write
// others, too.
var ways = map[string]func(w *pageWriter, ctx context.Context, tx pgx.Tx, l rowsOf) error{
	"insert": func(w *pageWriter, ctx context.Context, tx pgx.Tx, l rowsOf) error {
		return w.insert(ctx, tx, l, w.newKey(l))
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

// some are the keys of a few rows, mostly of one.
func (w *pageWriter) some(ctx context.Context, tx pgx.Tx, l rowsOf, n int) (keys []string, err error) {
	rows, err := tx.Query(ctx, fmt.Sprintf("SELECT %s::text FROM %s WHERE %s ORDER BY md5(%[1]s::text || $1) LIMIT $2", l.key(), l.table(), l.own()),
		fmt.Sprint(w.random.Uint64()), n)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func (w *pageWriter) few() int { return 1 + max(0, w.random.IntN(6)-3) }

func (w *pageWriter) insert(ctx context.Context, tx pgx.Tx, l rowsOf, key string) error {
	columns, values := w.row(l, key)
	var parameters []string
	for i := range columns {
		parameters = append(parameters, fmt.Sprintf("$%d", i+1))
	}
	_, err := tx.Exec(ctx, fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", l.table(), strings.Join(columns, ", "), strings.Join(parameters, ", ")), values...)
	return err
}

// each does something to n rows, one after the other.
func (w *pageWriter) each(ctx context.Context, tx pgx.Tx, l rowsOf, n int, do func(key string) error) error {
	keys, err := w.some(ctx, tx, l, n)
	for _, key := range keys {
		if err := do(key); err != nil {
			return err
		}
	}
	return err
}

func (w *pageWriter) remove(ctx context.Context, tx pgx.Tx, l rowsOf) error {
	return w.each(ctx, tx, l, w.few(), func(key string) error { return w.remove1(ctx, tx, l, key) })
}

func (w *pageWriter) remove1(ctx context.Context, tx pgx.Tx, l rowsOf, key string) error {
	return w.exec(ctx, tx, "DELETE FROM "+l.table()+" WHERE "+l.key()+" = $1", key)
}

func (w *pageWriter) exec(ctx context.Context, tx pgx.Tx, sql string, args ...any) error {
	_, err := tx.Exec(ctx, sql, args...)
	return err
}

// update gives each of a few rows another value in one column, or in some.
func (w *pageWriter) update(ctx context.Context, tx pgx.Tx, l rowsOf) error {
	return w.each(ctx, tx, l, w.few(), func(key string) error {
		columns, values := w.row(l, key)
		from := w.random.IntN(len(columns))
		to := from + 1 + w.random.IntN(2)*w.random.IntN(len(columns)-from)
		return w.set(ctx, tx, l, key, columns[from:to], values[from:to])
	})
}

func (w *pageWriter) set(ctx context.Context, tx pgx.Tx, l rowsOf, key string, columns []string, values []any) error {
	var sets []string
	for i, column := range columns {
		sets = append(sets, fmt.Sprintf("%s = $%d", column, i+2))
	}
	return w.exec(ctx, tx, fmt.Sprintf("UPDATE %s SET %s WHERE %s = $1", l.table(), strings.Join(sets, ", "), l.key()), append([]any{key}, values...)...)
}

// setOne writes another value into one column of a few rows.
func (w *pageWriter) setOne(ctx context.Context, tx pgx.Tx, l rowsOf, n, column int, value func() any) error {
	return w.each(ctx, tx, l, n, func(key string) error {
		return w.set(ctx, tx, l, key, []string{list.Quote(l.Columns[column].Name)}, []any{value()})
	})
}

// count writes a number into a column that moves no row in a list, which is the most usual update.
func (w *pageWriter) count(ctx context.Context, tx pgx.Tx, l rowsOf) error {
	columns := l.plain("numeric", "int4", "text", "varchar")
	if len(columns) == 0 {
		return w.update(ctx, tx, l)
	}
	column := pick(w.random, columns)
	return w.setOne(ctx, tx, l, w.few(), column, func() any { w.other++; return fmt.Sprint(w.other) })
}

func (w *pageWriter) rename(ctx context.Context, tx pgx.Tx, l rowsOf) error {
	if l.folded() < 0 {
		return w.update(ctx, tx, l)
	}
	return w.setOne(ctx, tx, l, w.few(), l.folded(), func() any { return randomName(w.random) })
}

func (w *pageWriter) anotherID(ctx context.Context, tx pgx.Tx, l rowsOf) error {
	return w.setOne(ctx, tx, l, 1, l.Key, func() any { return w.newKey(l) })
}

// move moves rows from their tenant to the next one, or to nobody.
func (w *pageWriter) move(ctx context.Context, tx pgx.Tx, l rowsOf) error {
	if l.Tenant < 0 {
		return w.update(ctx, tx, l)
	}
	return w.setOne(ctx, tx, l, w.few(), l.Tenant, func() any {
		if !l.Columns[l.Tenant].NotNull && w.random.IntN(3) == 0 {
			return nil
		}
		return w.beside(l).tenant
	})
}

// again changes one row twice.
func (w *pageWriter) again(ctx context.Context, tx pgx.Tx, l rowsOf) error {
	return w.each(ctx, tx, l, 1, func(key string) error {
		for range 2 {
			columns, values := w.row(l, key)
			if err := w.set(ctx, tx, l, key, columns, values); err != nil {
				return err
			}
		}
		flip := w.oracle.shape.flip
		switch n := w.random.IntN(4); {
		case n == 0:
			return w.remove1(ctx, tx, l, key)
		case n == 1 && flip != "":
			return w.exec(ctx, tx, "UPDATE "+l.table()+" SET "+flip+" WHERE "+l.key()+" = $1", key)
		}
		return nil
	})
}

// replace deletes a row and inserts another with its key: not if another writer has just done so, since what keeps the keys
// of a partitioned table unique is who writes them.
func (w *pageWriter) replace(ctx context.Context, tx pgx.Tx, l rowsOf) error {
	return w.each(ctx, tx, l, 1, func(key string) error {
		removed, err := tx.Exec(ctx, "DELETE FROM "+l.table()+" WHERE "+l.key()+" = $1", key)
		if err != nil || removed.RowsAffected() == 0 {
			return err
		}
		return w.insert(ctx, tx, l, key)
	})
}

func (w *pageWriter) beside(l rowsOf) rowsOf {
	i := slices.IndexFunc(w.oracle.workspaces, func(of pageWorkspace) bool { return of.tenant == l.tenant })
	return rowsOf{l.List, w.oracle.workspaces[i^1].tenant}
}

// savepoint rolls back a part of its transaction.
func (w *pageWriter) savepoint(ctx context.Context, tx pgx.Tx, l rowsOf) error {
	for _, end := range []string{"ROLLBACK TO s", "RELEASE s"} {
		if _, err := tx.Exec(ctx, "SAVEPOINT s"); err != nil {
			return err
		}
		if err := pick(w.random, []func(*pageWriter, context.Context, pgx.Tx, rowsOf) error{
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
func (w *pageWriter) long(ctx context.Context, tx pgx.Tx, l rowsOf) error {
	keys, err := w.some(ctx, tx, l, 2)
	for i, key := range keys {
		of := l.folded()
		if i > 0 || of < 0 {
			of = pick(w.random, l.Search)
		}
		if l.Columns[of].Mod > 0 {
			continue // such a value has no room
		}
		column := list.Quote(l.Columns[of].Name)
		_, err := tx.Exec(ctx, "UPDATE "+l.table()+" SET "+column+" = (SELECT string_agg(md5($2 || n::text), '') FROM generate_series(1, $3) n) WHERE "+l.key()+" = $1",
			key, fmt.Sprint(w.random.Uint64()), 70+w.random.IntN(230))
		if err != nil {
			return err
		}
	}
	return err
}

func (w *pageWriter) copyIn(ctx context.Context, tx pgx.Tx, l rowsOf) error {
	return w.fill(ctx, tx, l, 1+w.random.IntN(w.oracle.workspace(l.tenant).rows*2/5))
}

// fill copies so many new rows.
func (w *pageWriter) fill(ctx context.Context, tx pgx.Tx, l rowsOf, n int) error {
	var text strings.Builder
	var columns []string
	for range n {
		row, values := w.row(l, w.newKey(l))
		columns = row
		for i, value := range values {
			if value == nil {
				value = `\N`
			}
			fmt.Fprint(&text, []string{"", "\t"}[min(i, 1)], value)
		}
		text.WriteString("\n")
	}
	_, err := tx.Conn().PgConn().CopyFrom(ctx, strings.NewReader(text.String()), fmt.Sprintf("COPY %s (%s) FROM STDIN", l.table(), strings.Join(columns, ", ")))
	return err
}

func (w *pageWriter) many(ctx context.Context, tx pgx.Tx, l rowsOf) error {
	keys, err := w.some(ctx, tx, l, 60+w.random.IntN(30))
	if err != nil {
		return err
	}
	var sets []string
	if l.folded() >= 0 {
		name := list.Quote(l.Columns[l.folded()].Name)
		sets = append(sets, name+" = left(reverse("+name+"), 100)")
	}
	if w.oracle.shape.flip != "" {
		sets = append(sets, w.oracle.shape.flip)
	}
	if len(sets) == 0 {
		return w.update(ctx, tx, l)
	}
	return w.exec(ctx, tx, "UPDATE "+l.table()+" SET "+strings.Join(sets, ", ")+" WHERE "+l.key()+"::text = ANY($1)", keys)
}

// truncate empties a table and inserts a part of its rows again.
func (w *pageWriter) truncate(ctx context.Context, tx pgx.Tx, l rowsOf) error {
	var columns string // without generated ones
	err := tx.QueryRow(ctx, `SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
		WHERE attrelid = $1::text::regclass AND attnum > 0 AND attgenerated = '' AND NOT attisdropped`, l.table()).Scan(&columns)
	if err != nil {
		return err
	}
	for _, statement := range []string{
		"LOCK TABLE " + l.table() + " IN ACCESS EXCLUSIVE MODE",
		"CREATE TEMP TABLE kept ON COMMIT DROP AS SELECT " + columns + " FROM " + l.table() + " WHERE random() < 0.9",
		"TRUNCATE " + l.table(),
		"INSERT INTO " + l.table() + " (" + columns + ") SELECT * FROM kept",
	} {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// definition changes the table, and with it all rows.
func (w *pageWriter) definition(ctx context.Context, tx pgx.Tx, l rowsOf) error {
	w.other++
	columns := l.plain("text", "int4")
	if len(columns) == 0 {
		return w.update(ctx, tx, l)
	}
	c := l.Columns[pick(w.random, columns)]
	another := map[string]string{"text": "coalesce(%s, '') || '%d'", "int4": "%s + %d"}[c.Base]
	return w.exec(ctx, tx, fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s TYPE %s USING "+another, l.table(), list.Quote(c.Name), c.Type.Name,
		list.Quote(c.Name), w.other))
}

// step writes one transaction. If two writers block each other, one transaction is rolled back.
func (w *pageWriter) step(ctx context.Context) error {
	way := pick(w.random, usualWays)
	l := rowsOf{List: pick(w.random, w.oracle.shape.set.Lists)}
	l.tenant = l.Owner(pick(w.random, w.oracle.workspaces).tenant)
	err := pgx.BeginFunc(ctx, w.conn, func(tx pgx.Tx) error {
		var rows int
		if err := tx.QueryRow(ctx, "SELECT count(*) FROM "+l.table()+" WHERE "+l.own()).Scan(&rows); err != nil {
			return err
		}
		switch usual := w.oracle.workspace(l.tenant).rows; {
		case rows > usual*5/4:
			way = "delete"
		case rows < usual*3/4:
			way = "copy"
		}
		if err := ways[way](w, ctx, tx, l); err != nil {
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
