package origin

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
	"listedge/origin/admin"
)

// The index of grams may only ever narrow down what a comparison of every row
// finds: the server selects the same rows without any index.

// letters are what random texts are made of: few, so that terms are found
// again and again, with all that folds, escapes, separates or combines.
var letters = [][]rune{
	[]rune("abAB01 "), []rune(`ab%_\' -`), []rune("σςΣοΟδ α"), []rune("ßẞsSſ tT"), []rune("iIıİ\u0307 nN"), []rune("чаЙйЧА "),
	[]rune("中国茶 ab"), []rune("😀👩\u200d𝒜x "), []rune("eE\u0301\u0308éÉ "),
	[]rune("a\n\t\u00a0b\x01"), []rune("ﬁfiǅǆᾳᾼ ŉʼ"), []rune("한국어 \u1112\u1161"),
}

func randomText(random *rand.Rand, longest int) string {
	alphabet := letters[random.IntN(len(letters))]
	text := make([]rune, 1+random.IntN(longest))
	for i := range text {
		text[i] = alphabet[random.IntN(len(alphabet))]
	}
	return string(text)
}

// randomTerm is most often a piece of the text, in another case.
func randomTerm(random *rand.Rand, text string) string {
	if random.IntN(5) == 0 {
		return randomText(random, 5)
	}
	runes := []rune(text)
	from := random.IntN(len(runes))
	term := string(runes[from:min(len(runes), from+1+random.IntN(8))])
	return [...]func(string) string{strings.ToUpper, strings.ToLower, strings.ToTitle, strings.Clone}[random.IntN(4)](term)
}

func TestTheIndexFindsWhatComparingEveryRowFinds(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	locales := map[string]string{ // databases that differ in what their letters are
		"the server's": "template0", "C": "template0 LC_COLLATE 'C' LC_CTYPE 'C'",
		"Turkish of ICU": "template0 LOCALE_PROVIDER icu ICU_LOCALE 'tr'",
	}
	for locale, template := range locales {
		url := copyDatabase(t, template)
		must1(admin.MigrateUp(t.Context(), url, list.BuiltIn()))
		conn := connect(t, url)
		texts := fillAtRandom(t, conn, random)
		exec(t, conn, "SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off")
		o := openOrigin(t, url)
		found := 0
		for range 250 {
			term := strings.Trim(randomTerm(random, texts[random.IntN(len(texts))]), " \n\t\u00a0")
			if term == "" {
				continue
			}
			c := list.BuiltIn().Lists[random.IntN(2)]
			q := page.Query{Tenant: ourWorkspace, List: c, Search: term, Limit: page.MaxLimit, Order: random.IntN(2)}
			want := compareEveryRow(t, conn, q)
			got := walk(t, o, q, nil)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("locale %s, %s:\ngot  %v\nwant %v", locale, describe(q), got, want)
			}
			if s, _ := shapeOf(&q); s.Search == list.IndexedSearch && len(want) > 0 && len(want) <= page.MaxLimit {
				found++
			}
		}
		if found < 40 {
			t.Errorf("locale %s: rows were found through the index %d times only", locale, found)
		}
	}
}

// fillAtRandom gives two workspaces the same random rows under different ids,
// and returns the texts in them.
func fillAtRandom(t testing.TB, conn *pgx.Conn, random *rand.Rand) (texts []string) {
	t.Helper()
	text := func() string { texts = append(texts, randomText(random, 12)); return texts[len(texts)-1] }
	const rows = 400
	for c, insert := range map[*list.List]string{
		listtest.Items:    `INSERT INTO items (workspace_id, id, name, sku, description, active) VALUES ($1, $2, $3, $4, $5, $6)`,
		listtest.Contacts: `INSERT INTO contacts (workspace_id, id, name, email, phone, active) VALUES ($1, $2, $3, $4, $5, $6)`,
	} {
		var batch pgx.Batch
		for n := range rows {
			fields := []any{text(), nil, nil}
			for i := range fields[1:] {
				if random.IntN(3) > 0 {
					fields[1+i] = text()
				}
			}
			for w, workspace := range []string{ourWorkspace, otherWorkspace} {
				batch.Queue(insert, workspace, number(n+(w+c.Number*2)*rows), fields[0], fields[1], fields[2], n%20 > 0)
			}
		}
		must(conn.SendBatch(context.Background(), &batch).Close())
	}
	return texts
}

// compareEveryRow returns the ids of the rows that have the term in a field, in
// order of id.
func compareEveryRow(t testing.TB, conn *pgx.Conn, q page.Query) (ids []string) {
	t.Helper()
	var fields []string
	for _, i := range q.List.Search {
		fields = append(fields, fmt.Sprintf("coalesce(listedge_fold(%s) LIKE '%%' || regexp_replace(listedge_fold($2), '([%%_\\\\])', '\\\\\\1', 'g') || '%%', false)", q.List.Columns[i].Name))
	}
	rows, err := conn.Query(context.Background(), fmt.Sprintf("SELECT id::text FROM %s WHERE workspace_id = $1 AND active AND (%s) ORDER BY id",
		q.List.Table.SQL(), strings.Join(fields, " OR ")), q.Tenant, q.Search)
	if err == nil {
		ids, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	must(err)
	return ids
}

// Grams are numbers, and two workspaces may have the same: what is found
// through them is still only one's own.
func TestWorkspacesOfOneHashFindTheirOwnRows(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	conn := connect(t, url)
	var alike []string
	if err := conn.QueryRow(t.Context(), `SELECT array_agg(id::text) FROM (SELECT md5(n::text)::uuid AS id FROM generate_series(1, 400000) n) ids
		GROUP BY hashtext(id::text) HAVING count(*) > 1 LIMIT 1`).Scan(&alike); err != nil {
		t.Fatal(err)
	}
	for n, workspace := range alike {
		for _, l := range list.BuiltIn().Lists {
			exec(t, conn, "INSERT INTO "+l.Table.SQL()+" (workspace_id, id, name) VALUES ($1, $2, 'A needle')", workspace, number(n))
		}
	}
	e := explain(t, url, list.BuiltIn())
	for n, workspace := range alike {
		for _, c := range list.BuiltIn().Lists {
			ids, p := e.fetch(t, page.Query{Tenant: workspace, List: c, Search: "needle", Limit: 10})
			if want := []string{number(n)}; !slices.Equal(ids, want) {
				t.Errorf("%v of %s, want %v", ids, c.Name, want)
			}
			if p.usedIndexes[c.Name+"_by_grams"] != float64(len(alike)) {
				t.Errorf("their hashes differ:\n%s", p.text)
			}
		}
	}
}
