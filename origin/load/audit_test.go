package load

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"listedge/internal/lists"
	"listedge/origin/audit"
)

func actsAreInTheAuditLog(t *testing.T, db database) {
	log := func() (lines string) {
		for _, row := range query(t, db.URL, `SELECT actor, action, workspace_id, key_id, details FROM audit_log WHERE action NOT LIKE 'migrate%' ORDER BY id`) {
			lines += strings.Join(row, " ") + "\n"
		}
		return lines
	}
	ctx := audit.As(t.Context(), "Ann")
	file := filepath.Join(t.TempDir(), "items.csv")
	write := func(rows string) {
		t.Helper()
		must(os.WriteFile(file, []byte("id,name\n"+rows), 0o644))
	}

	write(uuid.NewString() + ",Tea\n" + uuid.NewString() + ",\n") // a name is missing
	if _, err := Import(ctx, db.URL, lists.Items, db.Workspace, file, io.Discard); err == nil {
		t.Error("imported a bad row")
	}
	if got := log(); got != "" {
		t.Errorf("an import that failed is in the log: %s", got)
	}

	write(uuid.NewString() + ",Tea\n" + uuid.NewString() + ",Cup\n")
	for range 2 { // the second changes nothing
		must1(Import(ctx, db.URL, lists.Items, db.Workspace, file, io.Discard))
	}
	workspaces := must1(Seed(ctx, db.URL, SeedSpec{Workspaces: 2, Items: 3, Contacts: 2, Seed: 5}, io.Discard))
	imported := "Ann import " + db.Workspace.String() + ` <null> {"file": "items.csv", "rows": 2, "changed": N, "collection": "items"}` + "\n"
	want := strings.Replace(imported, "N", "2", 1) + strings.Replace(imported, "N", "0", 1)
	for n, w := range workspaces {
		want += "Ann seed " + w.String() + ` <null> {"name": "Sample workspace ` + []string{"1", "2"}[n] + ` (seed 5)", "seed": 5, "items": 3, "contacts": 2}` + "\n"
	}
	if got := log(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}

	// Where the row cannot be written, nothing is imported.
	execute(t, db.URL, `ALTER TABLE audit_log ADD CONSTRAINT closed CHECK (action <> 'import') NOT VALID`)
	write(uuid.NewString() + ",Pot\n")
	if _, err := Import(ctx, db.URL, lists.Items, db.Workspace, file, io.Discard); err == nil {
		t.Error("imported without a row")
	}
	if pots := query(t, db.URL, `SELECT id FROM items WHERE name = 'Pot'`); len(pots) != 0 {
		t.Error("imported without a row: ", pots)
	}
}

func schemaIsMissing(t *testing.T, db database) {
	file := filepath.Join(t.TempDir(), "items.csv")
	must(os.WriteFile(file, []byte("id,name\n"), 0o644))
	try := func() {
		t.Helper()
		_, imported := Import(t.Context(), db.URL, lists.Items, db.Workspace, file, io.Discard)
		_, seeded := Seed(t.Context(), db.URL, SeedSpec{Workspaces: 1, Items: 1, Seed: 5}, io.Discard)
		for _, err := range []error{imported, seeded} {
			if err == nil || !strings.HasSuffix(err.Error(), ": run `listedge migrate up`") {
				t.Errorf("%v", err)
			}
		}
	}
	execute(t, db.URL, `DROP TABLE audit_log`)
	try()
	execute(t, db.URL, `DROP TABLE workspaces CASCADE`)
	try()
}
