package load

import (
	"strings"
	"testing"

	"listedge/internal/lists"
	"listedge/origin"
)

var awkwardDecimals = []string{
	"0", "-0", "0.0", "-0.00", "1", "-1", "10", "12.50", "0.5", "00", "01", "-01", ".5", "5.", "-", "", "+1", "1e3", "1E3", " 1", "1 ", "1,5", "1_000",
	"0x10", "NaN", "Infinity", "-Infinity", "１", "--1", "1.2.3", "1.-2",
	strings.Repeat("9", origin.MaxDigits), "1" + strings.Repeat("0", origin.MaxDigits),
	"-" + strings.Repeat("9", origin.MaxDigits) + "." + strings.Repeat("9", origin.MaxDigits),
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

// postgresAccepts holds the checks against the server's own parsers, in the
// columns and with the constraints of the table.
func postgresAccepts(t *testing.T, db database) {
	conn := open(t, db.URL)
	kindOf := map[string]lists.Kind{}
	accepts := func(column string, value any) error {
		_, err := conn.Exec(t.Context(), "INSERT INTO items (workspace_id, name, "+column+") SELECT $1, 'x', $2::text::"+kindOf[column].String(), db.Workspace, value)
		return err
	}
	columns := map[string]lists.Column{}
	for _, c := range lists.Items.Columns() {
		columns[c.Name], kindOf[c.Name] = c, c.Kind
	}
	for column, values := range map[string][]string{
		"cost_price": awkwardDecimals, "usage_30": awkwardDecimals, "created_at": awkwardInstants,
		"taxable": {"t", "f", "true", "false"}, "type": {"GOODS", "SERVICE"},
		"preferred_contact_id": {id1, "FFFFFFFF-ffff-FFFF-ffff-FFFFFFFFFFFF"},
	} {
		accepted := 0
		for _, value := range values {
			c := columns[column]
			if value == "" {
				continue
			}
			sent, reason := checkValue(&c, value)
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
	mustImport(t, db, lists.Items, write(t, "a.csv", "id,name,description,costPrice\n"+id1+",long,"+text+","+number+"\n"), 1)
	if got := query(t, db.URL, "SELECT cost_price, description FROM items WHERE id = $1", id1); got[0][0] != number || got[0][1] != text {
		t.Error("the longest values changed")
	}
}
