package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"listedge/internal/list/listtest"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/admin"
)

// An operator goes from tables to lists: init, migrate, show, plan, plan --apply, check.
func TestTheCommandsOfLists(t *testing.T) {
	t.Parallel()
	url := emptyDatabase(t)
	people := listtest.ShapeOf("people")
	execute(t, url, people.SQL)
	execute(t, url, people.Rows(1, 50))
	file := filepath.Join(sandboxtest.Dir(t), "lists.yaml")
	lists := func(line string) []string {
		return append(strings.Fields("lists "+line), "--lists", file, "--database-url", url)
	}
	t.Run("init", func(t *testing.T) {
		text := command(t, "lists", "init", "crm.people", "--database-url", url)
		if !strings.Contains(text, "\n    tenant: org_id # guessed") || !strings.HasSuffix(text, "\n") {
			t.Error(text)
		}
		must(os.WriteFile(file, []byte(text), 0o600))
		refused(t, exitFailed, "there is no table public.people", "lists", "init", "people", "--database-url", url)
		refused(t, exitUsage, `"crm.people.id" is no table`, "lists", "init", "crm.people.id", "--database-url", url)
	})
	t.Run("plan before migrations", func(t *testing.T) {
		refused(t, exitFailed, "run `listedge migrate up`", lists("plan")...)
	})
	command(t, "migrate", "up", "--lists", file, "--database-url", url)
	must(os.WriteFile(file, []byte(listtest.DescriptionText(people)), 0o600))
	t.Run("show", func(t *testing.T) {
		text := command(t, lists("show")...)
		head, rest, _ := strings.Cut(text, ", digest ")
		_, rest, _ = strings.Cut(rest, "\n")
		const want = `/v1/people of crm.people, scope people:read
  key id, tenant org_id
  id              string          column id, text
  fullName        string          column full_name, text
  mail            string or null  column mail, text
  tel             string or null  column tel, text
  vat             string or null  column vat, text
  isVendor        bool            column is_vendor, boolean
  createdAt       instant         column created, timestamp with time zone
  sort=name       by full_name, folded
  sort=createdAt  by created, descending
  type=vendor     where "is_vendor", few
  type=other      where NOT "is_vendor"
  search          in full_name, mail, tel, vat
`
		if head+"\n"+rest != want {
			t.Errorf("%s", text)
		}
	})
	t.Run("plan", func(t *testing.T) {
		text, steps := command(t, lists("plan")...), parsed[[]admin.Step](t, lists("plan")...)
		if made := command(t, lists("plan --apply")...); made != text || strings.Count(text, ";\n") != len(steps) {
			t.Errorf("made %s\nplanned %s, %+v", made, text, steps)
		}
		if again := command(t, lists("plan")...); again != "-- nothing is missing\n" {
			t.Error(again)
		}
	})
	t.Run("check", func(t *testing.T) {
		if text := command(t, lists("check")...); text != "LIST    ROWS  LIVE  OF NO WORKSPACE  FAULTS\npeople  50    50    50               0\n" {
			t.Error(text)
		}
		execute(t, url, "UPDATE crm.people SET created = 'infinity' WHERE org_id = 1")
		p := untilAnswered(t, lists("check --limit 2")...)
		lines := strings.Split(p.out.String(), "\n")
		if p.code != exitFailed || len(lines) != 5 || !strings.HasPrefix(lines[0], "people, tenant 1, key p") ||
			!strings.HasSuffix(lines[0], ": a value that cannot be shown: the field createdAt: a page with it is an error") || !strings.HasSuffix(lines[3], " 17") {
			t.Errorf("%d: %q", p.code, lines)
		}
	})
	t.Run("mistakes", func(t *testing.T) { // docs/OWN_TABLES.md has those of a file
		must(os.WriteFile(file, []byte("lists:\n  people: {table: crm.people, key: id, fields: {id: , name: }, orders: {mail: }}\n"), 0o600))
		p := untilAnswered(t, "doctor", "--lists", file, "--database-url", url)
		said := p.out.String()
		if p.code != exitFailed || strings.Count(said, "\nfail  lists ") < 2 || !strings.Contains(said, file+":2: there is no column name") ||
			!strings.Contains(said, "correct the description or the table") || !strings.Contains(said, "  reading ") {
			t.Errorf("%d: %s%s", p.code, said, p.err.String())
		}
	})
}
