package origin

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"listedge/internal/lists"
)

// encoded is the JSON of one value, which must be the same wherever its bytes
// and those of the page lie: at the end of their room, or amid the remains of others.
func encoded(t *testing.T, kind lists.Kind, v []byte) string {
	t.Helper()
	columns := []lists.Column{lists.Items.Columns()[0]}
	columns[0].Kind = kind
	remains := bytes.Repeat([]byte{'"', '\\', 1, 'x'}, 8)
	want := ""
	for i, v := range [][]byte{v[:len(v):len(v)], append(bytes.Clone(v), remains...)[:len(v)]} {
		if v == nil { // an empty text
			v = []byte{}
		}
		page, err := appendRow(bytes.Repeat(remains, i*len(v))[:0], columns, [][]byte{v})
		if err != nil {
			t.Fatalf("%d of kind %d: %v", v, kind, err)
		}
		got := strings.TrimSuffix(strings.TrimPrefix(string(page), `{"id":`), "}")
		if i > 0 && got != want {
			t.Fatalf("%.200s, but in other surroundings %.200s", got, want)
		}
		want = got
	}
	return want
}

// encodedInstant is encoded, without quotes.
func encodedInstant(t *testing.T, us int64) string {
	t.Helper()
	return strings.Trim(encoded(t, lists.Instant, binary.BigEndian.AppendUint64(nil, uint64(us-postgresEpoch))), `"`)
}

// sample is a row as Postgres sends it, and the JSON that the standard library
// makes of what it says.
type sample struct {
	sent [][]byte
	json []byte
}

func randomRow(random *rand.Rand, columns []lists.Column) (s sample) {
	var want strings.Builder
	for i, c := range columns {
		var v []byte
		var says any
		switch c.Kind {
		case lists.Text:
			runes := make([]rune, random.IntN(40))
			for i := range runes {
				runes[i] = []rune("abcdefgh ijkl\"\\\x00\x1f\n\té茶😀")[random.IntN(20)]
			}
			text := string(runes)
			if random.IntN(8) == 0 { // what the parts of a page look like
				text += []string{`{"id":"`, `],"page":{"`, `","name":"`, `{`, `]`, `\`}[random.IntN(6)]
			}
			v, says = []byte(text), text
		case lists.UUID:
			id := uuid.UUID(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, random.Uint64()), random.Uint64()))
			v, says = id[:], id
		case lists.Decimal, lists.Number:
			text := strconv.FormatFloat(random.NormFloat64()*1e6, 'f', random.IntN(20), 64)
			v, says = []byte(text), text
			if c.Kind == lists.Number {
				says = json.Number(text)
			}
		case lists.Bool:
			yes := random.IntN(2)
			v, says = []byte{byte(yes)}, yes == 1
		case lists.Instant:
			us := minCreatedAt + random.Int64N((maxCreatedAt-minCreatedAt)/1000)*1000
			v, says = binary.BigEndian.AppendUint64(nil, uint64(us-postgresEpoch)), time.UnixMicro(us).UTC().Format("2006-01-02T15:04:05.000Z")
		}
		if c.Nullable && random.IntN(3) == 0 {
			v, says = nil, nil
		}
		s.sent = append(s.sent, v)
		e := json.NewEncoder(&want)
		e.SetEscapeHTML(false)
		want.WriteString(map[bool]string{true: "{", false: ","}[i == 0] + strconv.Quote(c.Field) + ":")
		if err := e.Encode(says); err != nil {
			panic(err)
		}
	}
	s.json = []byte(strings.ReplaceAll(want.String(), "\n", "") + "}")
	return s
}

// Rows are what the standard library makes of the same values, one behind the
// other in a page as well.
func TestRowsAreThoseOfTheStandardLibrary(t *testing.T) {
	random := rand.New(rand.NewPCG(20, 21))
	for _, c := range lists.All {
		for range 500 {
			var page, want []byte
			for range 1 + random.IntN(10) {
				row := randomRow(random, c.Listed())
				var err error
				if page, err = appendRow(page, c.Listed(), row.sent); err != nil {
					t.Fatal(err)
				}
				if want = append(want, row.json...); !bytes.Equal(page, want) {
					t.Fatalf("%s\ninstead of\n%s", page, want)
				}
			}
		}
	}
}

// checkString: the text is a JSON string that reads back as itself, and, where
// encoding/json does not escape more than it must, is what that writes too.
func checkString(t *testing.T, s string) {
	t.Helper()
	got := []byte(encoded(t, lists.Text, []byte(s)))
	var back string
	if err := json.Unmarshal(got, &back); err != nil || back != s {
		t.Fatalf("%.200q became %.200s, that is %.200q: %v", s, got, back, err)
	}
	var want bytes.Buffer
	e := json.NewEncoder(&want)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		t.Fatal(err)
	}
	if !strings.ContainsAny(s, "\b\f\u2028\u2029") && string(got) != strings.TrimSuffix(want.String(), "\n") {
		t.Fatalf("%s, but encoding/json writes %s", got, want.Bytes())
	}
	if bytes.ContainsFunc(got, func(r rune) bool { return r < ' ' }) {
		t.Fatalf("control characters in %q", got)
	}
}

func TestStringsReadBackAsThemselves(t *testing.T) {
	for _, s := range append(longNames(), awkwardNames...) {
		checkString(t, s)
	}
	var every strings.Builder
	for r := range rune(0x3000) {
		checkString(t, string(r))
		checkString(t, "a"+string(r)+"b")
		every.WriteRune(r)
	}
	checkString(t, "")
	checkString(t, every.String())
	checkString(t, strings.Repeat("\x01", 5000)) // none takes more room
	random := rand.New(rand.NewPCG(10, 11))
	alphabet := []rune("ab\"\\/\x00\x01\x1f \x7f\u0080éß茶\u2028\u2029\ufeff\ufffd😀\U0010FFFF<>&'\n\r\t\b\f")
	for range 5000 {
		s := make([]rune, random.IntN(20))
		for i := range s {
			s[i] = alphabet[random.IntN(len(alphabet))]
		}
		checkString(t, string(s))
	}
}

func FuzzAppendString(f *testing.F) {
	for _, s := range awkwardNames {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if utf8.ValidString(s) { // Postgres sends no other
			checkString(t, s)
		}
	})
}

func TestInstantsHaveThreeDecimalsAndAZ(t *testing.T) {
	for want, us := range map[string]int64{
		"0001-01-01T00:00:00.000Z": minCreatedAt, "9999-12-31T23:59:59.999Z": maxCreatedAt - 1000,
		"1970-01-01T00:00:00.000Z": 0, "1969-12-31T23:59:59.999Z": -1000, "2000-01-01T00:00:00.000Z": postgresEpoch,
		"2026-01-02T03:04:05.678Z": 1767323045_678000, "1582-10-15T12:00:00.001Z": -12219249599_999000, "2024-02-29T23:59:59.100Z": 1709251199_100000,
	} {
		if got := encodedInstant(t, us); got != want {
			t.Errorf("%d is %s, want %s", us, got, want)
		}
	}
	random := rand.New(rand.NewPCG(12, 13))
	pattern := regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`)
	for range 10_000 {
		us := minCreatedAt + random.Int64N((maxCreatedAt-minCreatedAt)/1000)*1000
		got := encodedInstant(t, us)
		back, err := time.Parse(time.RFC3339Nano, got)
		if err != nil || back.UnixMicro() != us || !pattern.MatchString(got) {
			t.Fatalf("%d is %s, that is %v, %v", us, got, back, err)
		}
	}
}

func TestIDsAreInTheirCanonicalForm(t *testing.T) {
	for _, id := range []uuid.UUID{uuid.Nil, uuid.Max, uuid.New(), number(0xabcdef)} {
		if got := encoded(t, lists.UUID, id[:]); got != `"`+id.String()+`"` {
			t.Errorf("%s, want %s", got, id)
		}
	}
}

// What Postgres holds is what is shown: to the last digit, never with an exponent.
func TestDecimalsAreShownAsStored(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	conn, o := connect(t, url), openOrigin(t, url)
	decimal := regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?$`)
	for stored, shown := range map[string]string{
		"12.50": "12.50", "12.5": "12.5", "-0.01": "-0.01", "0": "0", "-0": "0", "-0.00": "0.00", "0.000": "0.000", "007": "7", ".5": "0.5", "1.": "1", "+3": "3",
		"1e3": "1000", "1.50e1": "15.0", "1e-7": "0.0000001", "1e-1000": "0." + strings.Repeat("0", 999) + "1", "1e299": "1" + strings.Repeat("0", 299),
		"0.1": "0.1", "100000000000000000000.000000000000000000001": "100000000000000000000.000000000000000000001",
	} {
		exec(t, conn, "DELETE FROM items")
		exec(t, conn, `INSERT INTO items (workspace_id, name, cost_price, avg_cost, selling_price, stock_on_hand, reorder_point, usage_30)
			SELECT $1, 'x', n, n, n, n, n, CASE WHEN abs(n) <= 9007199254740991 THEN abs(n) ELSE 0 END FROM CAST($2 AS text) s, CAST(s AS numeric) n`, ourWorkspace, stored)
		fields, err := decodeRow(fetch(t, o, Query{Workspace: ourWorkspace, Limit: 1}).rows[0])
		if err != nil {
			t.Fatal(err)
		}
		r := row{fields: fields}
		for _, name := range []string{"costPrice", "avgCost", "sellingPrice", "stockOnHand", "reorderPoint"} {
			if got := r.text(name); got != shown || !decimal.MatchString(got) {
				t.Errorf("%.40s: %s is %.40s", stored, name, got)
			}
		}
		number := strings.TrimPrefix(shown, "-")
		if whole, _, _ := strings.Cut(number, "."); len(whole) >= len(MaxNumber) {
			number = "0" // the schema takes no larger one
		}
		if got := string(r.get("usage30").(json.Number)); got != number {
			t.Errorf("%.40s: usage30 is %.40s", stored, got)
		}
	}
}

// Fields, their order and their names are the contract's.
func TestColumnsAreTheContracts(t *testing.T) {
	for c, reference := range map[lists.Collection]*row{lists.Items: newItem(uuid.Nil, uuid.Nil, "x"), lists.Contacts: newContact(uuid.Nil, uuid.Nil, "x")} {
		listed := c.Listed()
		if len(listed) != len(reference.fields) || len(c.Columns()) != len(listed)+1 || c.Columns()[len(listed)].Name != "active" {
			t.Fatalf("%s: %v", c, c.Columns())
		}
		for i, f := range reference.fields {
			if listed[i].Field != f.name || listed[i].Name != columnOf(f.name) || listed[i].Hidden || f.value == nil != listed[i].Nullable {
				t.Errorf("%s: %+v is not %s", c, listed[i], f.name)
			}
		}
	}
}
