package origin

import (
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"listedge/internal/lists"
)

// numeric is the number as Postgres sends it in binary.
func numeric(text string) []byte {
	var n pgtype.Numeric
	err := n.Scan(text)
	b, encodeErr := pgtype.NewMap().Encode(pgtype.NumericOID, pgtype.BinaryFormatCode, n, nil)
	if err = errors.Join(err, encodeErr); err != nil {
		panic(err)
	}
	return b
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
		fields := must1(decodeRow(fetch(t, o, Query{Workspace: ourWorkspace, Limit: 1}).rows[0]))
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
