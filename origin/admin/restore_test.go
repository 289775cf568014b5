package admin

import (
	"strings"
	"testing"

	"listedge/internal/remedy"
	"listedge/origin/postgres"
)

// Whoever follows the remedy for a changed table has the table of the schema again.
func TestTheRemedyForAChangedTableMendsIt(t *testing.T) {
	t.Parallel()
	for name, changed := range map[string]string{
		"a number":    `ALTER TABLE items ALTER usage_30 TYPE bigint`,
		"a float":     `ALTER TABLE items DROP CONSTRAINT items_usage_30_size; ALTER TABLE items ALTER usage_30 TYPE float8`,
		"characters":  `ALTER TABLE items ALTER sku TYPE char(20)`,
		"an enum":     `ALTER TABLE contacts DROP CONSTRAINT contacts_phone_size; DROP INDEX contacts_by_grams; CREATE TYPE kind AS ENUM ('x'); ALTER TABLE contacts ALTER phone TYPE kind USING NULL`,
		"no zone":     `ALTER TABLE contacts ALTER created_at TYPE timestamp`,
		"several":     `ALTER TABLE items ALTER cost_price TYPE int, ALTER reorder_point TYPE int`,
		"of a key":    `ALTER TABLE api_keys ALTER revoked_at TYPE text`,
		"a workspace": `ALTER TABLE workspaces ALTER suspended_at TYPE text`,
		"dropped":     `ALTER TABLE items DROP COLUMN description`,
		"an instant":  `ALTER TABLE contacts DROP COLUMN created_at`,
		"a flag":      `ALTER TABLE items DROP COLUMN track_stock`,
		"of keys":     `ALTER TABLE api_keys DROP COLUMN rate_per_second`,
		"a quota":     `ALTER TABLE workspaces DROP COLUMN quota`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := newDatabase(t)
			const indexes = `SELECT string_agg(indexdef, E'\n' ORDER BY indexname) FROM pg_indexes WHERE schemaname = 'public'`
			var before, after string
			must(connect(t, url).QueryRow(t.Context(), indexes).Scan(&before))
			for _, sql := range strings.Split(changed, "; ") {
				execOn(t, url, sql)
			}
			why, do := remedy.Explain(readiness(openDatabase(t, postgres.Options{URL: url})).Ready(t.Context()))
			if !strings.HasPrefix(do, "ALTER TABLE public.") || strings.Contains(why, "migrate up") {
				t.Fatalf("%s: %s", why, do)
			}
			for _, sql := range strings.Split(do, "; ") {
				execOn(t, url, sql)
			}
			if err := readiness(openDatabase(t, postgres.Options{URL: url})).Ready(t.Context()); err != nil {
				t.Errorf("after %s: %v", do, err)
			}
			must(connect(t, url).QueryRow(t.Context(), indexes).Scan(&after))
			if after != before {
				t.Errorf("after %s the indexes are\n%s\ninstead of\n%s", do, after, before)
			}
		})
	}
}

// The columns that are read from the migrations' text are those of a migrated database.
func TestRestoredColumnsAreThoseOfTheSchema(t *testing.T) {
	t.Parallel()
	var columns int
	must(connect(t, newDatabase(t)).QueryRow(t.Context(), `SELECT count(*) FROM information_schema.columns
		WHERE table_schema = 'public' AND table_name IN ('workspaces', 'api_keys', 'items', 'contacts')`).Scan(&columns))
	if len(restored[0]) != columns || len(restored[4]) == 0 {
		t.Errorf("%d columns instead of %d: %q", len(restored[0]), columns, restored)
	}
}
