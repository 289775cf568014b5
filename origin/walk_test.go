package origin

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
)

const (
	ourWorkspace   = "aaaaaaaa-0000-4000-8000-000000000001"
	otherWorkspace = "aaaaaaaa-0000-4000-8000-000000000002" // has rows with the same ids
	emptyWorkspace = "aaaaaaaa-0000-4000-8000-000000000003"
)

var longPrefix = strings.Repeat("Ünïté 𝔘", 11) // 77 characters

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

// Decimals as the schema takes them: scale kept, up to its bounds.
var (
	oddDecimals = []string{
		"0", "0.0", "0.000000000000000000000000000000", "12.50", "-0.01", "1", "-1", "100", "0.5", "1000000", "0.10",
		"999999999999999999999999999999.99", "-" + strings.Repeat("8", 200) + ".25",
	}
	longestDecimal = strings.Repeat("9", maxDigits)
	finestDecimal  = "0." + strings.Repeat("0", maxDigits-2) + "17"
)

// awkwardItems are the names in every way a row can be odd.
func awkwardItems(random *rand.Rand, workspace string) (rows []*row) {
	times := awkwardTimes()
	for n, name := range append(slices.Clone(awkwardNames), longNames()...) {
		r := newItem(workspace, awkwardID(n), name)
		r.active = n%11 != 5
		if n%3 == 0 {
			r.set("type", "SERVICE")
		}
		r.set("createdAt", times[random.IntN(len(times))])
		r.set("taxable", random.IntN(2) == 0)
		r.set("usage30", json.Number([]string{"0", "12", "0.50", "7.000", "1234567890.123456789"}[random.IntN(5)]))
		for _, name := range []string{"costPrice", "avgCost", "sellingPrice"} {
			r.set(name, oddDecimals[random.IntN(len(oddDecimals))])
		}
		r.set("sku", pick(random, nil, "", "CHAI-1", "sku_%", `s\k`, "ΣΚ", "чай-"+fmt.Sprint(n), "SKU-"+fmt.Sprint(n)))
		r.set("description", pick(random, nil, "", "black\nchai", "Tea of any kind", "with \"quotes\" and \u2028", strings.Repeat("long text ", 50), "ничего"))
		r.set("unit", pick(random, nil, "", "pcs", "кг", "\x02"))
		r.set("imagePath", pick(random, nil, "", `C:\chai.png`, "/images/чай.png"))
		r.set("preferredContactId", pick(random, nil, number(n)))
		r.set("trackStock", n%2 == 0)
		r.set("stockOnHand", pick(random, "0", "-0.01", "5", "12.50", "12.5", "12.500000"))
		r.set("reorderPoint", pick(random, nil, nil, "0", "5.00", "12.5", "-3"))
		rows = append(rows, r)
	}
	if workspace == ourWorkspace { // long ones take long to read: once each, where they can be filtered by
		rows[2].set("stockOnHand", longestDecimal).set("reorderPoint", "-0.01").set("trackStock", true)
		rows[4].set("stockOnHand", finestDecimal).set("reorderPoint", finestDecimal).set("trackStock", true)
		rows[7].set("usage30", json.Number(finestDecimal))
		rows[9].set("description", strings.Repeat("long \x02", maxText/6))
	}
	return rows
}

func awkwardContacts(random *rand.Rand, workspace string) (rows []*row) {
	times := awkwardTimes()
	for n, name := range append(slices.Clone(awkwardNames), longNames()...) {
		r := newContact(workspace, awkwardID(n), name)
		r.active = n%13 != 5
		r.set("createdAt", times[random.IntN(len(times))])
		r.set("email", pick(random, nil, "", "chai@example.com", "UPPER@EXAMPLE.COM", "%@_"))
		r.set("phone", pick(random, nil, "", "+31 20 123", "555_1234"))
		r.set("address", pick(random, nil, "", "Main Street\nchai house", "ул. Чайная"))
		r.set("tin", pick(random, nil, "", "NL001chai", `12\34`))
		r.set("isCustomer", n%2 == 0)
		r.set("isSupplier", n%5 == 0)
		rows = append(rows, r)
	}
	return rows
}

// awkwardID scatters ids, so that they never happen to agree with another order.
func awkwardID(n int) string {
	return uuid.NewSHA1(uuid.NameSpaceOID, fmt.Append(nil, "row ", n)).String()
}

// awkwardTimes has few of them for many rows, hence ties, and both ends.
func awkwardTimes() []string {
	return []string{
		"0001-01-01T00:00:00.000Z", "1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.000Z", "1999-12-31T23:59:59.999Z",
		"2000-01-01T00:00:00.000Z", "2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05.679Z", "2026-01-02T03:04:05.680Z",
		"2026-03-29T01:30:00.000Z", "2026-06-30T23:59:59.001Z", "9999-12-31T23:59:59.999Z",
	}
}

// longNames of 300 characters: the same up to the 80th or just before it.
func longNames() (names []string) {
	for _, at80 := range []string{"abc", "abd", "ABC", "aBd", "𝔘bc"} {
		for n := range 6 {
			tail := strings.Repeat(string(rune('z'-n)), 300)
			names = append(names, string([]rune(longPrefix + at80 + tail)[:300]))
		}
	}
	return names
}

func pick(random *rand.Rand, values ...any) any { return values[random.IntN(len(values))] }

// reference is what a list must show.
type reference struct {
	rows map[*list.List][]*row
	byID map[*list.List]map[string]map[string]*row
	read map[string]*row // rows as sent, once they were found to be right
}

// list is the reference answer to a query, all pages in one.
func (ref *reference) list(q page.Query) (rows []*row) {
	for _, r := range ref.rows[q.List] {
		if kept(r, q) && (q.Search == "" || found(r, q.Search)) {
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, func(a, b *row) int {
		if q.Order == listtest.ByName {
			return cmp.Or(cmp.Compare(a.nameKey(), b.nameKey()), cmp.Compare(a.id(), b.id()))
		}
		return cmp.Or(cmp.Compare(b.text("createdAt"), a.text("createdAt")), cmp.Compare(b.id(), a.id()))
	})
	return rows
}

// check compares a row as sent with the reference, field by field.
func (ref *reference) check(t testing.TB, q page.Query, raw []byte) *row {
	t.Helper()
	if r := ref.read[string(raw)]; r != nil && r.workspace == q.Tenant {
		return r
	}
	got, err := decodeRow(raw)
	if err != nil {
		t.Fatalf("%v in %.300s", err, raw)
	}
	want := ref.byID[q.List][q.Tenant][got[0].value.(string)]
	if want == nil {
		t.Fatalf("%s: row %v is not of this workspace", describe(q), got[0].value)
	}
	if !slices.Equal(got, want.fields) {
		for i := range want.fields {
			if i >= len(got) || got[i] != want.fields[i] {
				t.Fatalf("%s: %s is %.200q, want %.200q", describe(q), want.fields[i].name, fmt.Sprint(got[min(i, len(got)-1)]), fmt.Sprint(want.fields[i]))
			}
		}
		t.Fatalf("%s: %d fields, want %d", describe(q), len(got), len(want.fields))
	}
	ref.read[string(raw)] = want
	return want
}

func TestEveryListIsWhatTheReferenceSays(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	conn := connect(t, url)
	ref := &reference{
		rows: map[*list.List][]*row{}, byID: map[*list.List]map[string]map[string]*row{},
		read: map[string]*row{},
	}
	for c, make := range map[*list.List]func(*rand.Rand, string) []*row{listtest.Items: awkwardItems, listtest.Contacts: awkwardContacts} {
		ref.byID[c] = map[string]map[string]*row{}
		for n, workspace := range []string{ourWorkspace, otherWorkspace} {
			random := rand.New(rand.NewPCG(uint64(n), 7))
			rows := make(random, workspace)
			if n > 0 { // the same ids, other data
				slices.Reverse(rows)
				for i, id := range random.Perm(len(rows)) {
					rows[i].set("id", awkwardID(id))
				}
			}
			insert(t, conn, c, rows...)
			ref.rows[c] = append(ref.rows[c], rows...)
			byID := map[string]*row{}
			for _, r := range rows {
				byID[r.id()] = r
			}
			ref.byID[c][workspace] = byID
		}
	}

	o := openOrigin(t, url)
	filters := []page.Query{{List: listtest.Contacts}, {List: listtest.Contacts, Match: listtest.Customers}, {List: listtest.Contacts, Match: listtest.Suppliers}}
	for _, stock := range []uint64{0, listtest.Tracked, listtest.Low} {
		for _, typ := range []uint64{0, listtest.Goods, listtest.Services} {
			filters = append(filters, page.Query{List: listtest.Items, Match: stock | typ})
		}
	}
	pages, shown := 0, 0
	for _, q := range filters {
		for _, q.Order = range []int{listtest.ByCreatedAt, listtest.ByName} {
			for _, q.Search = range []string{"", "ab", "ай", "chai", "ΣΊΣ", "%", "555_1", "тут пусто"} {
				for workspace, limits := range map[string][]int{ourWorkspace: {1, 7, 50, 100}, otherWorkspace: {100}, emptyWorkspace: {1}} {
					q.Tenant = workspace
					if workspace != ourWorkspace && q.Search != "" && q.Search != "chai" {
						continue // the others are there to be kept apart
					}
					want := ref.list(q)
					shown += len(want)
					for _, q.Limit = range limits {
						pages += ref.compare(t, o, q, want)
					}
				}
			}
		}
	}
	if shown < 4000 || len(ref.read) < 700 {
		t.Errorf("only %d rows, %d of them different: the test has gone soft", shown, len(ref.read))
	}
	t.Logf("%d pages, %d rows in lists", pages, shown)
}

// checkRead compares what one statement read, for the page and for those behind it, with
// the rows of the reference behind the query's position.
func (ref *reference) checkRead(t testing.TB, q page.Query, read page.Read, want []*row) {
	t.Helper()
	most := q.Limit + 1
	if q.After != "" && q.Search == "" {
		most = 4*q.Limit + 1
	}
	if len(read.Rows) != min(most, len(want)) || read.End != (len(want) < most) {
		t.Fatalf("%s: %d rows and the end %v, of %d rows in the list", describe(q), len(read.Rows), read.End, len(want))
	}
	for i, r := range read.Rows {
		if got := ref.check(t, q, []byte(r.Text())); got != want[i] {
			t.Fatalf("%s: row %d of %d is %q", describe(q), i, len(want), got.text("name"))
		}
		name, key, _ := q.List.ParsePosition(listtest.ByName, q.List.Position(&r, listtest.ByName))
		at, _, _ := q.List.ParsePosition(listtest.ByCreatedAt, q.List.Position(&r, listtest.ByCreatedAt))
		moment := must1(time.Parse("2006-01-02 15:04:05Z07", at)).Format("2006-01-02T15:04:05.000Z")
		if q.List.KeyText(r.Key()) != want[i].id() || key != want[i].id() || name != want[i].nameKey() || moment != want[i].text("createdAt") ||
			r.Match&q.Match != q.Match {
			t.Fatalf("%s: row %d has %s, %q, %s and %b; the reference %v", describe(q), i, key, name, at, r.Match, want[i])
		}
	}
}

// compare walks all pages of the query.
func (ref *reference) compare(t testing.TB, o *Origin, q page.Query, want []*row) (pages int) {
	t.Helper()
	n := 0
	for {
		page := fetch(t, o, q)
		pages++
		ref.checkRead(t, q, page.read, want[n:])
		n += len(page.rows)
		if more := n < len(want); more != (page.next != "") || more && len(page.rows) != q.Limit {
			t.Fatalf("%s: %d rows, more to come: %v; %d of %d rows seen", describe(q), len(page.rows), page.next != "", n, len(want))
		}
		if page.next == "" {
			return pages
		}
		follow(t, &q, page.next)
	}
}
