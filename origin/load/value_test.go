package load

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"listedge/origin"
)

var awkwardDecimals = []string{
	"0", "-0", "0.0", "-0.00", "1", "-1", "10", "12.50", "0.5", "00", "01", "-01", ".5", "5.", "-", "", "+1", "1e3", "1E3", " 1", "1 ", "1,5", "1_000",
	"0x10", "NaN", "Infinity", "-Infinity", "１", "--1", "1.2.3", "1.-2",
	strings.Repeat("9", origin.MaxDigits), "1" + strings.Repeat("0", origin.MaxDigits), "-" + strings.Repeat("9", origin.MaxDigits) + "." + strings.Repeat("9", origin.MaxDigits),
	"0." + strings.Repeat("0", origin.MaxDigits-1) + "1", "0." + strings.Repeat("0", origin.MaxDigits+1),
}

var awkwardInstants = []string{
	"2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05Z", "2026-01-02t03:04:05z", "2026-01-02T03:04:05.6Z", "2026-01-02T03:04:05.678000000000Z",
	"2026-01-02T03:04:05.6781Z", "2026-01-02T03:04:05.Z", "2026-01-02T03:04:05,678Z", "2026-01-02 03:04:05Z", "2026-01-02T03:04Z", "2026-01-02", "",
	"2026-01-02T03:04:05", "2026-01-02T03:04:05+00:00", "2026-01-02T03:04:05-00:00", "2026-01-02T03:04:05+23:59", "2026-01-02T03:04:05-23:59",
	"2026-01-02T03:04:05+24:00", "2026-01-02T03:04:05+00:60", "2026-01-02T03:04:05+0000", "2026-01-02T24:00:00Z", "2026-01-02T23:60:00Z", "2026-01-02T23:59:60Z",
	"0001-01-01T00:00:00Z", "0001-01-01T00:00:00+00:01", "0000-12-31T23:59:59Z", "0000-12-31T23:59:59-00:01", "9999-12-31T23:59:59.999Z",
	"9999-12-31T23:59:59-00:01", "2024-02-29T00:00:00Z", "2025-02-29T00:00:00Z", "2026-00-01T00:00:00Z", "2026-13-01T00:00:00Z", "2026-01-00T00:00:00Z",
	"10000-01-01T00:00:00Z", "-001-01-01T00:00:00Z", "infinity", "now", "1969-12-31T23:59:59.999Z", "2026-1-2T3:4:5Z", "2026-01-02T3:04:05Z",
	strings.Repeat("\x89", 61),
}

// grammar is the API's.
var grammar = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?$`)

func FuzzDecimal(f *testing.F) {
	for _, s := range awkwardDecimals {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		whole, fraction, _ := strings.Cut(strings.TrimPrefix(s, "-"), ".")
		want := grammar.MatchString(s) && len(whole) <= origin.MaxDigits && len(fraction) <= origin.MaxDigits
		if _, reason := parseDecimal(s); (reason == "") != want {
			t.Errorf("%.100q: accepted %v, want %v", s, !want, want)
		}
	})
}

func FuzzInstant(f *testing.F) {
	for _, s := range awkwardInstants {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, reason := parseInstant(s)
		if reason != "" {
			return
		}
		want, err := time.Parse(time.RFC3339, strings.ToUpper(s))
		if err != nil && !strings.HasPrefix(s, "0000") && !strings.Contains(s, "+") && !strings.Contains(s[19:], "-") {
			t.Fatalf("%q is accepted, though %v", s, err)
		}
		if err == nil && !want.Equal(got) {
			t.Errorf("%q: %v, want %v", s, got, want)
		}
		if got.Year() < 1 || got.Year() > 9999 || got.Nanosecond()%1e6 != 0 || got.Location() != time.UTC {
			t.Errorf("%q: %v", s, got)
		}
	})
}

func TestInstants(t *testing.T) {
	for text, want := range map[string]string{
		"2026-01-02T03:04:05.6Z":           "2026-01-02T03:04:05.600Z",
		"2026-01-02t03:04:05.678000z":      "2026-01-02T03:04:05.678Z",
		"2026-01-02T03:04:05+05:30":        "2026-01-01T21:34:05.000Z",
		"0000-12-31T23:59:59-00:01":        "0001-01-01T00:00:59.000Z",
		"2026-01-02T03:04:05.67800000001Z": "finer than a millisecond: \"2026-01-02T03:04:05.67800000001Z\"",
		"9999-12-31T23:59:59-00:01":        "outside the years 0001 to 9999: \"9999-12-31T23:59:59-00:01\"",
		"0001-01-01T00:00:00+00:01":        "outside the years 0001 to 9999: \"0001-01-01T00:00:00+00:01\"",
		"2026-01-02T23:59:60Z":             "not an instant (RFC 3339): \"2026-01-02T23:59:60Z\"",
	} {
		got, reason := parseInstant(text)
		if reason == "" {
			reason = got.Format("2006-01-02T15:04:05.000Z")
		}
		if reason != want {
			t.Errorf("%s: %s, want %s", text, reason, want)
		}
	}
}

// postgresAccepts holds the checks against the server's own parsers, in the
// columns and with the constraints of the table.
func postgresAccepts(t *testing.T, db database) {
	conn := open(t, db.URL)
	accepts := func(column string, value any) error {
		_, err := conn.CopyFrom(t.Context(), pgx.Identifier{"items"}, []string{"workspace_id", "name", column}, pgx.CopyFromRows([][]any{{db.Workspace, "x", value}}))
		return err
	}
	columns := map[string]origin.Column{}
	for _, c := range origin.Items.Columns() {
		columns[c.Name] = c
	}
	for column, values := range map[string][]string{
		"cost_price": awkwardDecimals, "usage_30": awkwardDecimals, "created_at": awkwardInstants,
		"taxable": {"t", "f", "true", "false"}, "type": {"GOODS", "SERVICE"},
		"preferred_contact_id": {id1, "FFFFFFFF-ffff-FFFF-ffff-FFFFFFFFFFFF"},
	} {
		accepted := 0
		for _, value := range values {
			c := columns[column]
			sent, reason := parseValue(&c, value)
			if reason != "" {
				continue
			}
			accepted++
			if err := accepts(column, sent); err != nil {
				t.Errorf("%s: %.100q was accepted here: %v", column, value, err)
			}
		}
		if accepted < 2 {
			t.Errorf("%s: %d values accepted", column, accepted)
		}
	}
	// The bounds are the server's, not tighter ones.
	for column, values := range map[string][]string{
		"cost_price":  {"1" + strings.Repeat("0", origin.MaxDigits), "0." + strings.Repeat("1", origin.MaxDigits+1)},
		"description": {strings.Repeat("x", origin.MaxText+1)},
	} {
		for _, value := range values {
			if accepts(column, value) == nil {
				t.Errorf("the server keeps a %s of %d characters", column, len(value))
			}
		}
	}
	// What is as long as it can be goes all the way.
	number := "-" + strings.Repeat("9", origin.MaxDigits) + "." + strings.Repeat("9", origin.MaxDigits)
	text := strings.Repeat("é", origin.MaxText/2)
	mustImport(t, db, origin.Items, write(t, "a.csv", "id,name,description,costPrice\n"+id1+",long,"+text+","+number+"\n"), 1)
	if got := query(t, db.URL, "SELECT cost_price, description FROM items WHERE id = $1", id1); got[0][0] != number || got[0][1] != text {
		t.Error("the longest values changed")
	}
}
