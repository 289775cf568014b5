package origin

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// checkString: the text is a JSON string that reads back as itself, and, where
// encoding/json does not escape more than it must, is what that writes too.
func checkString(t *testing.T, s string) {
	t.Helper()
	got := appendString([]byte("["), []byte(s))[1:]
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
		if got := string(appendInstant([]byte("at "), us)); got != "at "+want {
			t.Errorf("%d is %s, want %s", us, got, want)
		}
		wire := binary.BigEndian.AppendUint64(nil, uint64(us-postgresEpoch))
		if got := string(appendValue(nil, Instant, wire)); got != `"`+want+`"` {
			t.Errorf("%x is %s, want %s", wire, got, want)
		}
	}
	random := rand.New(rand.NewPCG(12, 13))
	pattern := regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`)
	for range 10_000 {
		us := minCreatedAt + random.Int64N((maxCreatedAt-minCreatedAt)/1000)*1000
		got := string(appendInstant(nil, us))
		back, err := time.Parse(time.RFC3339Nano, got)
		if err != nil || back.UnixMicro() != us || !pattern.MatchString(got) {
			t.Fatalf("%d is %s, that is %v, %v", us, got, back, err)
		}
	}
}

func TestIDsAreInTheirCanonicalForm(t *testing.T) {
	for _, id := range []uuid.UUID{uuid.Nil, uuid.Max, uuid.New(), number(0xabcdef)} {
		if got := string(appendUUID(nil, id[:])); got != id.String() {
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
		"1e3": "1000", "1.50e1": "15.0", "1e-7": "0.0000001", "1e-16383": "0." + strings.Repeat("0", 16382) + "1", "1e131071": "1" + strings.Repeat("0", 131071),
		"0.1": "0.1", "100000000000000000000.000000000000000000001": "100000000000000000000.000000000000000000001",
	} {
		exec(t, conn, "DELETE FROM items")
		exec(t, conn, `INSERT INTO items (workspace_id, name, cost_price, avg_cost, selling_price, stock_on_hand, reorder_point, usage_30)
			SELECT $1, 'x', n, n, n, n, n, abs(n) FROM CAST($2 AS text) s, CAST(s AS numeric) n`, ourWorkspace, stored)
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
		if got := string(r.get("usage30").(json.Number)); got != strings.TrimPrefix(shown, "-") {
			t.Errorf("%.40s: usage30 is %.40s", stored, got)
		}
	}
}

// Rows are read from bytes; bytes of another type must not be taken for them.
func TestAnotherShapeIsRefused(t *testing.T) {
	fields := func() (list []pgconn.FieldDescription) {
		for _, c := range Contacts.listed() {
			list = append(list, pgconn.FieldDescription{DataTypeOID: c.Kind.oid(), Format: c.Kind.format()})
		}
		return list
	}
	if err := checkShape(Contacts, fields()); err != nil {
		t.Fatal(err)
	}
	short, typed, formatted := fields()[1:], fields(), fields()
	typed[3].DataTypeOID, formatted[3].Format = pgtype.JSONBOID, pgtype.TextFormatCode+pgtype.BinaryFormatCode-formatted[3].Format
	for name, got := range map[string][]pgconn.FieldDescription{"a column less": short, "another type": typed, "another format": formatted, "nothing": nil} {
		if checkShape(Contacts, got) == nil {
			t.Errorf("%s is taken", name)
		}
	}
	if checkShape(Items, fields()) == nil {
		t.Error("contacts are taken for items")
	}
}

// Fields, their order and their names are the contract's.
func TestColumnsAreTheContracts(t *testing.T) {
	for c, reference := range map[Collection]*row{Items: newItem(uuid.Nil, uuid.Nil, "x"), Contacts: newContact(uuid.Nil, uuid.Nil, "x")} {
		listed := c.listed()
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
