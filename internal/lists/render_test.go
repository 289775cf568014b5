package lists

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// encoded is the JSON of one value, which must be the same wherever its bytes
// and those of the page lie: at the end of their room, or amid the remains of others.
func encoded(t *testing.T, kind Kind, v []byte) string {
	t.Helper()
	remains := bytes.Repeat([]byte{'"', '\\', 1, 'x'}, 8)
	want := ""
	for i, v := range [][]byte{v[:len(v):len(v)], append(bytes.Clone(v), remains...)[:len(v)]} {
		if v == nil { // an empty text
			v = []byte{}
		}
		got, err := appendValue(bytes.Repeat(remains, i*len(v))[:0], kind, v)
		if err != nil {
			t.Fatalf("%d of kind %d: %v", v, kind, err)
		}
		if i > 0 && string(got) != want {
			t.Fatalf("%.200s, but in other surroundings %.200s", got, want)
		}
		want = string(got)
	}
	return want
}

// encodedInstant is encoded, without quotes.
func encodedInstant(t *testing.T, us int64) string {
	t.Helper()
	return strings.Trim(encoded(t, Instant, binary.BigEndian.AppendUint64(nil, uint64(us-PostgresEpoch))), `"`)
}

// checkString: the text is a JSON string that reads back as itself, and, where
// encoding/json does not escape more than it must, is what that writes too.
func checkString(t *testing.T, s string) {
	t.Helper()
	got := []byte(encoded(t, Text, []byte(s)))
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
	f.Add("a\"\\\x01\u2028é")
	f.Fuzz(func(t *testing.T, s string) {
		if utf8.ValidString(s) { // Postgres sends no other
			checkString(t, s)
		}
	})
}

func TestInstantsHaveThreeDecimalsAndAZ(t *testing.T) {
	for want, us := range map[string]int64{
		"0001-01-01T00:00:00.000Z": MinInstant, "9999-12-31T23:59:59.999Z": EndInstant - 1000,
		"1970-01-01T00:00:00.000Z": 0, "1969-12-31T23:59:59.999Z": -1000, "2000-01-01T00:00:00.000Z": PostgresEpoch,
		"2026-01-02T03:04:05.678Z": 1767323045_678000, "1582-10-15T12:00:00.001Z": -12219249599_999000, "2024-02-29T23:59:59.100Z": 1709251199_100000,
	} {
		if got := encodedInstant(t, us); got != want {
			t.Errorf("%d is %s, want %s", us, got, want)
		}
	}
	random := rand.New(rand.NewPCG(12, 13))
	pattern := regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`)
	for range 10_000 {
		us := MinInstant + random.Int64N((EndInstant-MinInstant)/1000)*1000
		got := encodedInstant(t, us)
		back, err := time.Parse(time.RFC3339Nano, got)
		if err != nil || back.UnixMicro() != us || !pattern.MatchString(got) {
			t.Fatalf("%d is %s, that is %v, %v", us, got, back, err)
		}
	}
}

func TestIDsAreInTheirCanonicalForm(t *testing.T) {
	for _, id := range []uuid.UUID{uuid.Nil, uuid.Max, uuid.New(), {15: 0xab}} {
		if got := encoded(t, UUID, id[:]); got != `"`+id.String()+`"` {
			t.Errorf("%s, want %s", got, id)
		}
	}
}

// sentNumeric is the number as Postgres sends it.
func sentNumeric(t *testing.T, text string) []byte {
	t.Helper()
	var n pgtype.Numeric
	if err := n.Scan(text); err != nil {
		t.Fatal(err)
	}
	b, err := pgtype.NewMap().Encode(pgtype.NumericOID, pgtype.BinaryFormatCode, n, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestNumbersAreComparedExactly(t *testing.T) {
	long := strings.Repeat("9", 2000)
	sorted := [][]string{{"-Infinity"}, {"-" + long}, {"-10"}, {"-9.99", "-9.990"}, {"-0.0001"}, {"0"}, {"0." + strings.Repeat("0", 1000) + "1"},
		{"0.1", "0.10"}, {"0.11"},
		{"1.05"}, {"1.5"}, {"9"}, {"10", "10.0"}, {"10000"}, {"10000.0001"}, {long + ".1"}, {long + ".2"}, {"Infinity"}, {"NaN"}}
	for i, some := range sorted {
		for j, others := range sorted {
			for _, a := range some {
				for _, b := range others {
					x, ok := parseNumeric(sentNumeric(t, a))
					y, both := parseNumeric(sentNumeric(t, b))
					if by := x.compare(&y); by != cmp.Compare(i, j) || !ok || !both {
						t.Errorf("%.20s and %.20s: %d", a, b, by)
					}
				}
			}
		}
	}
}

// item is an item as Postgres sends it.
func item(t *testing.T) [][]byte {
	values := make([][]byte, len(Items.Listed()))
	for i, c := range Items.Listed() {
		values[i] = map[Kind][]byte{UUID: make([]byte, 16), Text: []byte("é"), Decimal: sentNumeric(t, "1"), Number: sentNumeric(t, "2"),
			Bool: {1}, Instant: binary.BigEndian.AppendUint64(nil, 3)}[c.Kind]
	}
	return values
}

func TestARowHasWhatListsCompare(t *testing.T) {
	infinity, early := binary.BigEndian.AppendUint64(nil, math.MaxInt64), binary.BigEndian.AppendUint64(nil, 1<<63)
	at := map[string]int{}
	for i, c := range Items.Listed() {
		at[c.Name] = i
	}
	for name, c := range map[string]struct {
		column string
		value  []byte
		want   Row // besides id and text
		err    error
	}{
		"low":                {"sku", nil, Row{CreatedAt: PostgresEpoch + 3, texts: "E", key: 1, Flags: Tracked | Low}, nil},
		"goods, not tracked": {"track_stock", []byte{0}, Row{CreatedAt: PostgresEpoch + 3, texts: "E", key: 1}, nil},
		"not low":            {"stock_on_hand", sentNumeric(t, "1.0001"), Row{CreatedAt: PostgresEpoch + 3, texts: "E", key: 1, Flags: Tracked}, nil},
		"no reorder point":   {"reorder_point", nil, Row{CreatedAt: PostgresEpoch + 3, texts: "E", key: 1, Flags: Tracked}, nil},
		"goods":              {"type", []byte("GOODS"), Row{CreatedAt: PostgresEpoch + 3, texts: "E", key: 1, Flags: Tracked | Low | Goods}, nil},
		"not a number":       {"cost_price", sentNumeric(t, "NaN"), Row{CreatedAt: PostgresEpoch + 3, texts: "E", key: 1, Flags: Tracked | Low, State: TextUnknown}, ErrBounds},
		"too large a stock":  {"stock_on_hand", sentNumeric(t, "Infinity"), Row{CreatedAt: PostgresEpoch + 3, texts: "E", key: 1, Flags: Tracked, State: TextUnknown}, ErrBounds},
		"infinity":           {"created_at", infinity, Row{CreatedAt: math.MaxInt64, texts: "E", key: 1, Flags: Tracked | Low, State: TextUnknown}, ErrBounds},
		"-infinity":          {"created_at", early, Row{CreatedAt: math.MinInt64 + PostgresEpoch, texts: "E", key: 1, Flags: Tracked | Low, State: TextUnknown}, ErrBounds},
		"without a name":     {"name", nil, Row{}, ErrMalformed},
		"a short id":         {"id", []byte{1}, Row{}, ErrMalformed},
		"half an instant":    {"created_at", infinity[:4], Row{}, ErrMalformed},
		"two truths":         {"taxable", []byte{1, 1}, Row{}, ErrMalformed},
		"a number, cut":      {"usage_30", sentNumeric(t, "5")[:9], Row{}, ErrMalformed},
		"a sign unheard of":  {"usage_30", []byte{0, 0, 0, 0, 1, 0, 0, 0}, Row{}, ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			values := item(t)
			values[at[c.column]] = c.value
			r, err := Items.Row(values, 0)
			if !errors.Is(err, c.err) || json.Valid([]byte(r.Text())) != (err == nil) {
				t.Errorf("%v: %s", err, r.Text())
			}
			if *r.SetTexts(r.NameKey(), "") != c.want {
				t.Errorf("%+v, want %+v", r, c.want)
			}
		})
	}
}
