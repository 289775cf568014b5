package origin

import (
	"context"
	"errors"
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
	"listedge/origin/postgres"
)

const (
	ourWorkspace   = "aaaaaaaa-0000-4000-8000-000000000001"
	otherWorkspace = "aaaaaaaa-0000-4000-8000-000000000002" // has rows with the same ids
	emptyWorkspace = "aaaaaaaa-0000-4000-8000-000000000003"
)

// awkwardNames in many scripts and cases; some differ only by case, some not at all.
var awkwardNames = []string{
	"chai", "Chai", "CHAI", "cHAI", "chaï", "CHAÏ", "tea", "Tea", "TEA", "a", "A", "b", "B", "aa", "AA", "Aa", "ab c", "abc", "ABC",
	"Zebra", "zebra", "zèbre", "Äpfel", "äpfel", "Apfel", "Ångström", "Angstrom", "Öl", "oel", "Straße", "STRASSE", "strasse", "STRAẞE",
	"naïve", "NAIVE", "coöperate", "résumé", "resume", "Résumé", "re\u0301sume\u0301", "Łódź", "lodz", "çay", "Çay", "cay", "ñandú",
	"nandu", "Nandú",
	"ΟΔΟΣ", "οδος", "Οδός", "Σίσυφος", "ΣΊΣΥΦΟΣ", "σισυφοσ", "άλφα", "Άλφα", "ΑΛΦΑ", "ωμέγα",
	"Чай", "чай", "ЧАЙ", "Ёлка", "елка", "ёлка", "Яблоко", "яблоко", "щи", "Їжак", "їжак",
	"İstanbul", "istanbul", "ISTANBUL", "ıstanbul", "Istanbul", "DİYARBAKIR", "diyarbakır",
	"茶", "中国茶", "ちゃ", "チャ", "ﾁｬ", "ソーダ", "한국어", "한", "漢字かな交じり", "שלום", "مرحبا", "नमस्ते",
	"ไทย", "ქართული", "հայերեն",
	"100% juice", "100 % juice", "50_50", "5050", `back\slash`, `\`, `\\`, "%", "_", "%%", "it's", "'", `"quoted"`, `"`, "''",
	"\t", "tab\there", "line\nbreak", "carriage\rreturn", "\x01control\x1f", "\x7f", "\u0085", "\u2028", "line\u2028sep\u2029end",
	"\u00a0", "\u200b", "\ufeffbom", "\ufffd",
	"😀", "👩‍👩‍👧‍👦 family", "🇳🇱", "e\u0301", "é", "É", "\U0010FFFF", "𝒜𝒷𝒸", "ﬁne", "fine", "ǅ", "ǆ", "ſharp",
	"sharp", "K", "k", "µ", "μ", "Μ",
	"null", "true", "0", "1", "10", "2", "-1", "a-b", "a b", "ab", "a_b", "a.b", "A'B", "<script>&amp;</script>", "co-op", "coop", "CO-OP",
	" leading", "trailing ", "  ", "#", "€", "$", "~", "^", "`", "|",
}

// longNames of 300 characters: the same up to the 80th or just before it.
func longNames() (names []string) {
	prefix := strings.Repeat("Ünïté 𝔘", 11) // 77 characters
	for _, at80 := range []string{"abc", "abd", "ABC", "aBd", "𝔘bc"} {
		for n := range 6 {
			names = append(names, string([]rune(prefix + at80 + strings.Repeat(string(rune('z'-n)), 300))[:300]))
		}
	}
	return names
}

// fillAwkwardly gives both workspaces rows with these names that are odd in every way a row can be, under the same ids, which
// agree with no order. Few instants make many ties.
func fillAwkwardly(t testing.TB, conn *pgx.Conn) {
	t.Helper()
	of := func(values, n string) string {
		return fmt.Sprintf("(ARRAY[%s])[1 + (%s) %% %d]", values, n, strings.Count(values, ",")+1)
	}
	const moments = `'0001-01-01Z', '1969-12-31 23:59:59.999Z', '1970-01-01Z', '1999-12-31 23:59:59.999Z', '2000-01-01Z', '2026-01-02 03:04:05.678Z',
		'2026-01-02 03:04:05.68Z', '2026-03-29 01:30Z', '9999-12-31 23:59:59.999Z'`
	decimals := of("0, 0.0, 0.000000000000000000000000000000, 12.50, -0.01, 1, -1, 100, 0.5, 1000000, 0.10, 999999999999999999999999999999.99, -"+
		strings.Repeat("8", 200)+".25", "w + n * 5")
	const from = " FROM unnest($1::uuid[]) WITH ORDINALITY a (workspace, w), unnest($2::text[]) WITH ORDINALITY b (name, n)"
	for sql, columns := range map[string][]string{
		"items (workspace_id, id, active, name, type, track_stock, taxable, created_at, usage_30, cost_price, stock_on_hand, reorder_point, " +
			"sku, description, unit)": {
			"n % 11 <> 5", "name", of("'GOODS', 'GOODS', 'SERVICE'", "n"), "n % 2 = 0", "n % 7 > 3", of(moments, "w + n * 7") + "::timestamptz",
			of("0, 12, 0.50, 7.000, 1234567890.123456789", "n * w"), decimals, of("0, -0.01, 5, 12.50, 12.5, 12.500000", "n * w"),
			of("NULL, NULL, 0, 5.00, 12.5, -3", "n * 5 + w"), of(`NULL, '', 'CHAI-1', 'sku_%', 's\k', 'ΣΚ', 'чай-' || n`, "n + w"),
			of(`NULL, '', E'black\nchai', 'Tea of any kind', U&'with "quotes" and \2028', repeat('long text ', 50), 'ничего'`, "n * 3 + w"),
			of(`NULL, '', 'pcs', 'кг', E'\x02'`, "n")},
		"contacts (workspace_id, id, active, name, is_customer, is_supplier, created_at, email, phone, address, tin)": {
			"n % 13 <> 5", "name", "n % 2 = 0", "n % 5 = 0", of(moments, "w + n * 7") + "::timestamptz",
			of("NULL, '', 'chai@example.com', 'UPPER@EXAMPLE.COM', '%@_'", "n + w"),
			of("NULL, '', '+31 20 123', '555_1234'", "n * w"), of(`NULL, '', E'Main Street\nchai house', 'ул. Чайная'`, "n + w"),
			of(`NULL, '', 'NL001chai', '12\34'`, "n * 3 + w")},
	} {
		exec(t, conn, "INSERT INTO "+sql+" SELECT workspace, md5(((n * w) % 1009)::text)::uuid, "+strings.Join(columns, ", ")+from,
			[]string{ourWorkspace, otherWorkspace}, append(awkwardNames, longNames()...))
	}
	exec(t, conn, `UPDATE items SET stock_on_hand = 1e1000 - 1, track_stock = true, reorder_point = -0.01 WHERE name = 'chai';
		UPDATE items SET stock_on_hand = 17e-1000, reorder_point = 17e-1000, track_stock = true WHERE name = 'tea'`)
	exec(t, conn, `UPDATE items SET usage_30 = 17e-1000 WHERE name = 'b'; UPDATE items SET description = repeat(E'long \x02', 10000) WHERE name = 'Zebra'`)
}

// insertNamed gives the workspace rows with these names, in their order, whose ids agree with no order.
func insertNamed(t testing.TB, conn *pgx.Conn, workspace string, names ...string) {
	t.Helper()
	exec(t, conn, "INSERT INTO items (workspace_id, id, name) SELECT $1, md5(n::text)::uuid, name FROM unnest($2::text[]) WITH ORDINALITY names (name, n)",
		workspace, names)
}

// fetch asks for one page: its ids, and what was read for it and for pages behind it.
func fetch(t testing.TB, o *Origin, q page.Query) (ids []string, read page.Read) {
	t.Helper()
	var err error
	eventually(t, "a connection, which may take longer than a node waits", func() bool {
		read, err = o.Fetch(context.Background(), q, "")
		return !errors.Is(err, postgres.ErrUnavailable)
	})
	if err != nil {
		t.Fatalf("%s: %v", describe(q), err)
	}
	for i := range min(q.Limit, len(read.Rows)) {
		ids = append(ids, q.List.KeyText(read.Rows[i].Key()))
	}
	return ids, read
}

// walk fetches all pages.
func walk(t testing.TB, o *Origin, q page.Query) (all []string) {
	t.Helper()
	for {
		ids, read := fetch(t, o, q)
		all = append(all, ids...)
		if read.End && len(ids) == len(read.Rows) {
			return all
		}
		if len(ids) != q.Limit {
			t.Fatalf("%s: %d rows on a page that is not the last", describe(q), len(ids))
		}
		q = q.Behind(&read.Rows[len(ids)-1])
	}
}

// termsOf are pieces of the names, in any case.
func termsOf(names []string) (terms []string) {
	random := rand.New(rand.NewPCG(1, 2))
	for len(terms) < 100 {
		runes := []rune(names[random.IntN(len(names))])
		from := random.IntN(len(runes))
		term := string(runes[from:min(len(runes), from+1+random.IntN(8))])
		term = [...]func(string) string{strings.ToUpper, strings.ToLower, strings.ToTitle, strings.Clone}[random.IntN(4)](term)
		if term = strings.TrimSpace(term); term != "" {
			terms = append(terms, term)
		}
	}
	return terms
}

// The two lists, of rows that are odd in every way, in databases that differ in what their letters are.
func TestEveryListIsWhatPlainStatementsSay(t *testing.T) {
	t.Parallel()
	for locale, template := range map[string]string{"the server's": "template0", "C": "template0 LC_COLLATE 'C' LC_CTYPE 'C'",
		"Turkish of ICU": "template0 LOCALE_PROVIDER icu ICU_LOCALE 'tr'"} {
		t.Run(locale, func(t *testing.T) {
			t.Parallel()
			url := copyDatabase(t, template)
			must1(admin.MigrateUp(t.Context(), url, list.BuiltIn()))
			conn, o := connect(t, url), openOrigin(t, url)
			fillAwkwardly(t, conn)
			if locale == "the server's" {
				compareLists(t, o, conn, listtest.Items, listtest.Contacts)
			}
			indexed := 0
			for i, term := range termsOf(append(awkwardNames, longNames()...)) { // the index may only ever narrow down what a comparison of every row finds
				l := list.BuiltIn().Lists[i%2]
				q := page.Query{Tenant: ourWorkspace, List: l, Search: term, Limit: page.MaxLimit, Order: i / 2 % 2}
				found := plains[l.Name].compare(t, o, conn, q, "true")
				if s, _ := shapeOf(&q); s.Search == list.IndexedSearch && found > 0 {
					indexed++
				}
			}
			if indexed < 25 {
				t.Errorf("rows were found through the index %d times only", indexed)
			}
		})
	}
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
