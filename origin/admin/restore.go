package admin

import (
	"context"
	_ "embed"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed restore.sql
var restoreSQL string

// restored are the arguments of restoreSQL: what the migrations make of the tables that other
// systems change, too. They are read from the text of the migrations, which has a column a line.
var restored = func() (arguments [7][]string) {
	files, _ := migrationFiles.ReadDir("migrations")
	for _, f := range files {
		text, _ := migrationFiles.ReadFile("migrations/" + f.Name())
		up, _, _ := strings.Cut(string(text), "-- +goose Down")
		up = comment.ReplaceAllLiteralString(up, "")
		for _, table := range tableOf.FindAllStringSubmatch(up, -1) {
			for _, c := range columnOf.FindAllStringSubmatch(table[2], -1) {
				definition := strings.TrimSuffix(strings.Join(strings.Fields(c[0]), " "), ",")
				for i, argument := range []string{table[1], c[1], c[2], definition} {
					arguments[i] = append(arguments[i], argument)
				}
			}
		}
		for _, function := range functionOf.FindAllStringSubmatch(up, -1) {
			arguments[6] = append(arguments[6], function[1])
		}
		for _, index := range indexOf.FindAllStringSubmatch(up, -1) {
			arguments[4] = append(arguments[4], index[1])
			arguments[5] = append(arguments[5], strings.TrimSuffix(strings.Join(strings.Fields(index[0]), " "), ";"))
		}
	}
	return arguments
}()

var (
	comment    = regexp.MustCompile(`(?m)--[^+].*$`)
	tableOf    = regexp.MustCompile(`(?ms)^CREATE TABLE IF NOT EXISTS (\w+) \(\n(.*?)^\);`)
	columnOf   = regexp.MustCompile(`(?m)^    ([a-z_0-9]+) +([a-z0-9]+(?:\(\d+\)|\[\])?).*(?:\n     +.*)*`)
	functionOf = regexp.MustCompile(`(?m)^CREATE FUNCTION (\w+)`)
	indexOf    = regexp.MustCompile(`(?ms)^CREATE INDEX (\w+) ON (?:workspaces|api_keys|items|contacts) .*?;$`)
)

// restore returns what to do about tables that are not those of the schema, although all migrations
// are applied: the commands that bring back a column, its name, its type or an index, and what only a
// backup has.
func restore(ctx context.Context, db querier) string {
	arguments := []any{pgx.QueryExecModeExec}
	for _, list := range restored {
		arguments = append(arguments, list)
	}
	rows, _ := db.Query(ctx, restoreSQL, arguments...)
	if commands, err := pgx.CollectRows(rows, pgx.RowTo[string]); err == nil && len(commands) > 0 {
		return strings.Join(commands, "; ")
	}
	return migrateUp + "; what it has made before and was dropped since, restore from a backup"
}
