package load

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"listedge/origin"
)

// Every statement of the package is in this file. Names in them come from the
// collection's columns, never from a file; values are arguments or COPY data.

// loadSettingsSQL is run first in the transaction of a load. Its statements take long if there
// are many rows.
const loadSettingsSQL = `SET LOCAL statement_timeout = 0`

const workspaceExistsSQL = `SELECT EXISTS (SELECT FROM workspaces WHERE id = $1)`

// importTable holds the rows of a file, in the types of the collection's columns.
// All may be null.
const importTable = "pg_temp.listedge_import"

var importIdentifier = pgx.Identifier(strings.Split(importTable, "."))

func createImportTableSQL(c origin.Collection) string {
	return fmt.Sprintf("CREATE TEMPORARY TABLE listedge_import ON COMMIT DROP AS SELECT 0 AS given, %s FROM %s WITH NO DATA",
		strings.Join(names(c.Columns()), ", "), c)
}

// analyzeImportSQL tells the planner how many rows there are.
const analyzeImportSQL = "ANALYZE " + importTable

// dropSameSQL deletes, among the rows with this set of columns, those whose values the table
// already has. $1 is the workspace, $2 the set. It is a statement of its own and not a
// condition of the upsert, for two reasons. A condition of its UPDATE would lock, and thereby
// write, each such row. For a condition of its SELECT, the planner might assume that the table
// is empty while a million rows are inserted.
func dropSameSQL(c origin.Collection, given int32) string {
	var same []string
	for _, column := range columnsOf(c, given) {
		cast := ""
		if column.Kind == origin.Decimal || column.Kind == origin.Number {
			cast = "::text" // 12.5 = 12.50, but they are shown differently
		}
		same = append(same, fmt.Sprintf("r.%[1]s%[2]s IS NOT DISTINCT FROM t.%[1]s%[2]s", column.Name, cast))
	}
	return fmt.Sprintf("DELETE FROM %s r USING %s t WHERE r.given = $2 AND t.workspace_id = $1 AND t.id = r.id AND %s",
		importTable, c, strings.Join(same, " AND "))
}

// importPagesSQL is the size of the temporary table.
const importPagesSQL = `SELECT pg_relation_size('` + importTable + `') / current_setting('block_size')::int`

// upsertSQL writes the rows that give this set of columns, of a range of pages. $1
// is the workspace, $2 the set, $3 the first page, $4 the page after the last.
func upsertSQL(c origin.Collection, given int32) string {
	columns := columnsOf(c, given)
	var set []string
	for _, column := range columns {
		if column.Name != "id" {
			set = append(set, fmt.Sprintf("%[1]s = excluded.%[1]s", column.Name))
		}
	}
	list := strings.Join(names(columns), ", ")
	return fmt.Sprintf(`INSERT INTO %[1]s (workspace_id, %[2]s) SELECT $1, %[2]s FROM %[3]s
WHERE given = $2 AND ctid >= format('(%%s,0)', $3::bigint)::tid AND ctid < format('(%%s,0)', $4::bigint)::tid
ON CONFLICT (workspace_id, id) DO UPDATE SET %[4]s`, c, list, importTable, strings.Join(set, ", "))
}

// columnsOf returns the columns of a set, in the collection's order.
func columnsOf(c origin.Collection, given int32) (list []origin.Column) {
	for i, column := range c.Columns() {
		if given&(1<<i) != 0 {
			list = append(list, column)
		}
	}
	return list
}

func names(columns []origin.Column) (list []string) {
	for _, c := range columns {
		list = append(list, c.Name)
	}
	return list
}

const (
	anyWorkspaceSQL    = `SELECT id FROM workspaces WHERE id = ANY($1) ORDER BY id LIMIT 1`
	insertWorkspaceSQL = `INSERT INTO workspaces (id, name, created_at) VALUES ($1, $2, $3)`
	analyzeSQL         = `ANALYZE items, contacts`
)
