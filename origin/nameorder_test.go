package origin

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"listedge/origin/postgres"
)

func nameOrderOf(t testing.TB, url string) postgres.NameOrder {
	t.Helper()
	order, err := postgres.ReadNameOrder(within(t, patience), connect(t, url))
	if err != nil {
		t.Fatal(err)
	}
	return order
}

// asciiNames are random names that share much: prefixes, letters in other cases, the
// first 80 characters.
func asciiNames(random *rand.Rand, n int) (names []string) {
	alphabets := []string{"aAbB", "aA 1", "-_ .", "lLjJnNdDzZ", "cChHlL", "09 -", `"'` + "`^~", ""}
	for c := byte(' '); c <= '~'; c++ {
		alphabets[len(alphabets)-1] += string(c)
	}
	char := func(alphabet string) byte { return alphabet[random.IntN(len(alphabet))] }
	for len(names) < n {
		alphabet := alphabets[random.IntN(len(alphabets))]
		var name []byte
		if len(names) > 0 && random.IntN(2) == 0 {
			name = []byte(names[random.IntN(len(names))])
			name = name[:random.IntN(len(name)+1)]
		}
		if random.IntN(4) == 0 {
			for len(name) < postgres.NameKeyLength-2+random.IntN(3) {
				name = append(name, 'x')
			}
		}
		for range 1 + random.IntN(5) {
			name = append(name, char(alphabet))
		}
		switch random.IntN(4) {
		case 0:
			name = []byte(strings.ToUpper(string(name)))
		case 1:
			name[random.IntN(len(name))] = char(alphabet)
		}
		names = append(names, string(name))
	}
	return names
}

func TestKeysOfNamesCompareAsTheDatabaseDoes(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	order := nameOrderOf(t, url)
	conn := connect(t, url)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	names := asciiNames(random, 4000)
	for _, first := range []byte{'a', 'A', ' ', '-', '0'} { // each character beside each other one
		for c := byte(' '); c <= '~'; c++ {
			names = append(names, string([]byte{first, c}), string([]byte{c}), string([]byte{c, c, first}))
		}
	}
	const pairs = 200_000
	var is, others []string
	equal := 0
	for range pairs {
		a, b := names[random.IntN(len(names))], names[random.IntN(len(names))]
		switch random.IntN(8) {
		case 0:
			b = strings.ToLower(a)
		case 1:
			b = a + b
		case 2:
			i := random.IntN(len(a))
			b = a[:i] + b[:1] + a[i+1:]
		}
		is, others = append(is, a), append(others, b)
	}
	rows, err := conn.Query(context.Background(), `SELECT a, b,
		CASE WHEN x < y THEN -1 WHEN x > y THEN 1 WHEN x = y THEN 0 END,
		octet_length(name_key(a)), octet_length(name_key(b))
		FROM unnest($1::text[], $2::text[]) AS pair (a, b),
		LATERAL (SELECT name_key(a) COLLATE name_order AS x, name_key(b) COLLATE name_order AS y OFFSET 0) keys`, is, others)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	n := 0
	for ; rows.Next(); n++ {
		var a, b string
		var want, lengthA, lengthB int
		if err := rows.Scan(&a, &b, &want, &lengthA, &lengthB); err != nil {
			t.Fatal(err)
		}
		keyA, okA := order.Key(a)
		keyB, okB := order.Key(b)
		if !okA || !okB || len(keyA) != lengthA || len(keyB) != lengthB {
			t.Fatalf("%q has key %q (%t), %q has %q (%t)", a, keyA, okA, b, keyB, okB)
		}
		if got := cmp.Compare(keyA, keyB); got != want {
			t.Errorf("%q to %q: %d, and in the database %d", a, b, got, want)
		}
		if want == 0 && a != b {
			equal++
		}
	}
	if err := rows.Err(); err != nil || n != pairs || equal < pairs/100 {
		t.Errorf("%d pairs, of which %d are equal: %v", n, equal, err)
	}
}

func TestOnlyNamesInASCIIHaveKeys(t *testing.T) {
	t.Parallel()
	order := nameOrderOf(t, newDatabase(t))
	if order.Digest == 0 {
		t.Error("no digest")
	}
	x := strings.Repeat("x", postgres.NameKeyLength)
	for _, name := range []string{"", "é", "e\u0301", "a\u00adb", "tab\t", "\x7f", "\x01", "\u200b", "茶", x[1:] + "é", "é" + x} {
		if key, ok := order.Key(name); ok || key != "" {
			t.Errorf("%q has the key %q", name, key)
		}
	}
	long, _ := order.Key(x)
	for _, name := range []string{x + "a", x + "é", x + "\t", strings.ToUpper(x)} {
		if key, ok := order.Key(name); !ok || key != long {
			t.Errorf("%q: %q, %t", name, key, ok)
		}
	}
	var none postgres.NameOrder
	if key, ok := none.Key("a"); ok || key != "" {
		t.Errorf("without an order: %q", key)
	}
}

// A collation that was made by hand is refused, even if it orders characters alike.
func TestAnotherOrderOfNamesIsRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"case matters":           "CREATE COLLATION name_order (provider = icu, locale = 'und', deterministic = false)",
		"deterministic":          "CREATE COLLATION name_order (provider = icu, locale = 'und-u-ks-level2')",
		"bytes":                  `CREATE COLLATION name_order FROM "C"`,
		"a language":             "CREATE COLLATION name_order (provider = icu, locale = 'hu-u-ks-level2', deterministic = false)",
		"punctuation is ignored": "CREATE COLLATION name_order (provider = icu, locale = 'und-u-ks-level2-ka-shifted', deterministic = false)",
		"digits are numbers":     "CREATE COLLATION name_order (provider = icu, locale = 'und-u-ks-level2-kn-true', deterministic = false)",
		"another ICU": `CREATE COLLATION name_order (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
			UPDATE pg_collation SET collversion = '0' WHERE collname = 'name_order'`,
		"none": "",
	} {
		url := newDatabase(t)
		execOn(t, url, "DROP COLLATION name_order CASCADE;"+change)
		conn := connect(t, url)
		order, err := postgres.ReadNameOrder(within(t, patience), conn)
		if err == nil || order.Digest != 0 || (change != "") != errors.Is(err, postgres.ErrNameOrder) {
			t.Errorf("%s: %v, %v", name, order.Digest, err)
		}
	}
}

// The pairs show by themselves that an order is none of single characters.
func TestPairsShowWhatSingleCharactersHide(t *testing.T) {
	t.Parallel()
	conn := connect(t, newDatabase(t))
	statement, err := os.ReadFile("postgres/nameorder.sql")
	if err != nil {
		t.Fatal(err)
	}
	for locale, want := range map[string]bool{
		"und-u-ks-level2": true, "en-u-ks-level2": true,
		"und": false, "hu-u-ks-level2": false, "cs-u-ks-level2": false, "es-u-co-trad-ks-level2": false,
		"und-u-ks-level2-ka-shifted": false, "und-u-ks-level2-kn-true": false, "und-u-ks-level1-kc-true": false,
	} {
		var known bool
		exec(t, conn, "CREATE COLLATION other (provider = icu, locale = '"+locale+"', deterministic = false)")
		// as if the migrations had made it
		sql := strings.NewReplacer("public.name_order", "public.other", "'und-u-ks-level2'", quoted(locale)).Replace(string(statement))
		if err := conn.QueryRow(context.Background(), sql).Scan(&known, nil); err != nil || known != want {
			t.Errorf("%s: %t, %v", locale, known, err)
		}
		exec(t, conn, "DROP COLLATION other")
	}
}

// Pages do not wait for the order of names, nor for one that is not the schema's.
func TestPagesByNameCarryTheOrderOfNames(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	conn := connect(t, url)
	insert(t, conn, Items, newItem(ourWorkspace, number(1), "Name"))
	o := openOrigin(t, url)
	names := func() *postgres.NameOrder {
		t.Helper()
		page, err := o.Fetch(within(t, patience), Query{Workspace: ourWorkspace, Sort: ByName, Limit: 1}, "")
		if err != nil {
			t.Fatal(err)
		}
		return page.Shown.Names
	}
	if names() != nil {
		t.Error("the first page waited for it")
	}
	o.Probe(within(t, patience))
	order := nameOrderOf(t, url)
	if known := names(); known == nil || *known != order {
		t.Errorf("%v instead of %v", known, order)
	}
	if page, err := o.Fetch(within(t, patience), Query{Workspace: ourWorkspace, Limit: 1}, ""); err != nil || page.Shown.Names != nil {
		t.Errorf("in the list by createdAt: %v, %v", page.Shown, err)
	}

	exec(t, conn, "UPDATE pg_collation SET collversion = '0' WHERE collname = 'name_order'")
	other := openOrigin(t, url)
	other.names.wanted.Store(true)
	other.Probe(within(t, patience))
	o = other
	if names() != nil || o.names.known.Load() == nil || o.names.wanted.Load() {
		t.Error("of another ICU")
	}
}
