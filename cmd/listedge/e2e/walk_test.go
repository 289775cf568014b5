package e2e

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The tests copy real and unusual rows into the tables, walk them over HTTP, and compare
// every field of every row with the file.

// readRows reads a file as the API should show its active rows.
func readRows(t *testing.T, file string) map[string]map[string]any {
	t.Helper()
	rows := map[string]map[string]any{}
	text := strings.TrimPrefix(string(must1(os.ReadFile(file))), "\uFEFF")
	text = strings.ReplaceAll(text, "\r\n", "\r\r\n") // of which the reader takes away one \r
	records := must1(csv.NewReader(strings.NewReader(text)).ReadAll())
	for _, record := range records[1:] {
		row := map[string]any{}
		for i, field := range records[0] {
			row[strings.TrimSpace(field)] = shown(strings.TrimSpace(field), strings.TrimSuffix(record[i], "\r")) // of the line's end
		}
		if row["active"] == true {
			delete(row, "active")
			rows[row["id"].(string)] = row
		}
	}
	return rows
}

// shown is a cell as JSON has it.
func shown(field, cell string) any {
	switch {
	case cell == "":
		return nil
	case field == "usage30":
		return json.Number(cell)
	case slices.Contains([]string{"taxable", "trackStock", "isCustomer", "isSupplier", "active"}, field):
		return cell == "t" || cell == "true"
	case strings.HasPrefix(cell, "-") && strings.Trim(cell, "-0.") == "":
		return cell[1:] // numeric has no negative zero
	}
	return cell
}

// walk reads all pages of a list, and checks that no page but the last is short, that Link and
// nextCursor lead to the same page, and that no row comes twice.
func (n *testNode) walk(t *testing.T, path, key string, size int) (rows []map[string]any) {
	t.Helper()
	seen := map[any]bool{}
	for next := path; ; {
		a := n.first(t, next, key)
		p := a.page(t)
		for _, row := range p.Data {
			if seen[row["id"]] {
				t.Fatalf("%s: %v comes twice", path, row["id"])
			}
			seen[row["id"]] = true
		}
		rows = append(rows, p.Data...)
		next = a.next(t)
		if !p.Page.HasMore {
			if p.Page.NextCursor != nil || next != "" || len(p.Data) > size {
				t.Fatalf("%s: the last page has %d rows, cursor %v, link %s", path, len(p.Data), p.Page.NextCursor, next)
			}
			return rows
		}
		if len(p.Data) != size {
			t.Fatalf("%s: a page of %d rows, not %d, in the middle", path, len(p.Data), size)
		}
		if !strings.HasSuffix(next, "cursor="+*p.Page.NextCursor) {
			t.Fatalf("%s: cursor %s, link %s", path, *p.Page.NextCursor, next)
		}
	}
}

func TestUnusualRowsAreWalkedExactly(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	stranger, _ := workspaceWithKey(t, url)
	n := startNode(t, url)
	for _, collection := range []string{"items", "contacts"} {
		file := filepath.Join("testdata", collection+".csv")
		copyRows(t, url, collection, workspace, file)
		copyRows(t, url, collection, stranger, file)
		execute(t, url, "UPDATE "+collection+" SET name = 'Not yours' WHERE workspace_id = $1", stranger)
		want := readRows(t, file)
		for _, sort := range []string{"createdAt", "name"} {
			for _, size := range []int{1, 7, 50, 100} {
				path := fmt.Sprintf("/v1/%s?sort=%s&limit=%d", collection, sort, size)
				got := n.walk(t, path, key, size)
				if len(got) != len(want) {
					t.Errorf("%s: %d rows, want %d", path, len(got), len(want))
				}
				for _, row := range got { // package origin shows their order
					compareRow(t, path, row, want[row["id"].(string)])
				}
			}
		}
	}
}

// copyRows copies a file of rows, whose header has the names of the API, into a workspace.
func copyRows(t *testing.T, url, collection, workspace, file string) {
	t.Helper()
	conn := connect(t, url)
	text := must1(os.ReadFile(file))
	header, _, _ := strings.Cut(strings.TrimPrefix(string(text), "\uFEFF"), "\n")
	columns := strings.ToLower(regexp.MustCompile("[A-Z]|30").ReplaceAllString(header, "_$0"))
	must1(conn.Exec(t.Context(), "CREATE TEMPORARY TABLE copied (LIKE "+collection+" INCLUDING DEFAULTS)"))
	must1(conn.Exec(t.Context(), "ALTER TABLE copied ALTER workspace_id SET DEFAULT '"+workspace+"'"))
	must1(conn.PgConn().CopyFrom(t.Context(), bytes.NewReader(text), "COPY copied ("+columns+") FROM STDIN (FORMAT csv, HEADER)"))
	must1(conn.Exec(t.Context(), "INSERT INTO "+collection+" SELECT * FROM copied"))
}

func compareRow(t *testing.T, path string, got, want map[string]any) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: row %v has fields %v, want %v", path, got["id"], got, want)
	}
	for field, value := range want {
		if got[field] != value {
			t.Errorf("%s: row %v: %s is %#v, want %#v", path, got["id"], field, got[field], value)
		}
	}
}

// walkedWorkspace makes a workspace of 40 items, for walks in pages of one.
func walkedWorkspace(t *testing.T, database string) (workspace string) {
	t.Helper()
	workspace, _ = workspaceWithKey(t, database)
	execute(t, database, "INSERT INTO items (workspace_id, name) SELECT $1, 'Item ' || n FROM generate_series(1, 40) n", workspace)
	return workspace
}

// The first page of a cold walk costs a query, and so does every fourth one behind it.
func TestAColdWalkCostsAQueryForFourPages(t *testing.T) {
	for _, mode := range []string{"30s", "0"} { // with so long a bound no proof comes too late on a busy machine
		t.Run("freshness bound "+mode, func(t *testing.T) {
			t.Parallel()
			database := database(t)
			key := newKeyFor(t, database, walkedWorkspace(t, database), "--rate", "0.001", "--burst", "1000")
			n := startNode(t, database, "--freshness-bound", mode, "--cache-ttl", "1m")
			within(t, patience, "pages are fresh by proof or by age", func() bool { return n.mode() != "untrusted" })
			pages := len(n.walk(t, "/v1/items?limit=1", key, 1))
			fetched := n.metric(t, "listedge_origin_fetches_total", `outcome="ok"`)
			if most := 1 + float64(pages)/4; pages < 30 || fetched > most {
				t.Errorf("%v queries for %d pages", fetched, pages)
			}
		})
	}
}
