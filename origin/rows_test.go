package origin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"golang.org/x/text/cases"
	"golang.org/x/text/language"
	"golang.org/x/text/unicode/norm"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
	"listedge/origin/postgres"
)

// The reference: rows as the API describes them, made, filtered, searched and
// read back without a line of the code under test.

// field is one field of an answer; value is a string, a bool, a json.Number or nil.
type field struct {
	name  string
	value any
}

// row is what a list should show of one row, fields in the API's order.
type row struct {
	workspace string
	active    bool
	fields    []field

	low      bool     // by the words of the API; set when inserted
	searched []string // the searched fields, folded, the name first; set when inserted
}

func (r *row) get(name string) any {
	for _, f := range r.fields {
		if f.name == name {
			return f.value
		}
	}
	panic("no field " + name)
}

func (r *row) set(name string, value any) *row {
	for i, f := range r.fields {
		if f.name == name {
			r.fields[i].value = value
			return r
		}
	}
	panic("no field " + name)
}

func (r *row) text(name string) string { return r.get(name).(string) }
func (r *row) id() string              { return r.text("id") }

func newItem(workspace, id, name string) *row {
	return &row{workspace: workspace, active: true, fields: []field{
		{"id", id}, {"name", name}, {"type", "GOODS"}, {"sku", nil}, {"description", nil}, {"unit", nil},
		{"imagePath", nil}, {"preferredContactId", nil}, {"costPrice", "0"}, {"avgCost", "0"}, {"sellingPrice", "0"},
		{"taxable", true}, {"trackStock", false}, {"stockOnHand", "0"}, {"reorderPoint", nil}, {"usage30", json.Number("0")},
		{"createdAt", "2026-01-01T00:00:00.000Z"},
	}}
}

func newContact(workspace, id, name string) *row {
	return &row{workspace: workspace, active: true, fields: []field{
		{"id", id}, {"name", name}, {"email", nil}, {"phone", nil}, {"address", nil}, {"tin", nil},
		{"isCustomer", false}, {"isSupplier", false}, {"createdAt", "2026-01-01T00:00:00.000Z"},
	}}
}

// columnOf is the table's name of a field of the API: usage30 is usage_30.
func columnOf(field string) string {
	var b strings.Builder
	for i, r := range field {
		digit := '0' <= r && r <= '9' && !strings.ContainsRune("0123456789", rune(field[i-1]))
		if 'A' <= r && r <= 'Z' || digit {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}

// insert writes the rows with all their columns.
func insert(t testing.TB, conn *pgx.Conn, c *list.List, rows ...*row) {
	t.Helper()
	var records []map[string]any
	for _, r := range rows {
		r.low = c == listtest.Items && low(r)
		r.searched = searched(r, c)
		record := map[string]any{"workspace_id": r.workspace, "active": r.active}
		for _, f := range r.fields {
			record[columnOf(f.name)] = f.value
		}
		records = append(records, record)
	}
	b := must1(json.Marshal(records))
	exec(t, conn, fmt.Sprintf("INSERT INTO %[1]s SELECT * FROM json_populate_recordset(NULL::%[1]s, $1::text::json)", c.Table.SQL()), string(b))
}

// kept says whether stock and type keep the row, by the words of the API.
func kept(r *row, q page.Query) bool {
	if !r.active || r.workspace != q.Tenant {
		return false
	}
	var has map[uint64]bool
	if q.List == listtest.Contacts {
		has = map[uint64]bool{listtest.Customers: r.get("isCustomer") == true, listtest.Suppliers: r.get("isSupplier") == true}
	} else {
		has = map[uint64]bool{listtest.Tracked: r.get("trackStock") == true, listtest.Low: r.low,
			listtest.Goods: r.get("type") == "GOODS", listtest.Services: r.get("type") == "SERVICE"}
	}
	for flag, is := range has {
		if q.Match&flag != 0 && !is {
			return false
		}
	}
	return true
}

func low(r *row) bool {
	return r.get("trackStock") == true && r.get("reorderPoint") != nil &&
		rational(r.text("stockOnHand")).Cmp(rational(r.text("reorderPoint"))) <= 0
}

func rational(decimal string) *big.Rat {
	r, ok := new(big.Rat).SetString(decimal)
	if !ok {
		panic("not a number: " + decimal)
	}
	return r
}

// latinLetters are those that do not decompose.
var latinLetters = strings.NewReplacer("ẞ", "SS", "Æ", "AE", "Œ", "OE", "Ø", "O", "Đ", "D", "Ð", "D", "Ħ", "H", "Ł", "L", "Ŧ", "T")

// folded is a text as the reference compares it, by tables that the product does not use.
func folded(s string) string {
	bare := strings.Map(func(r rune) rune {
		if r >= '\u0300' && r <= '\u036f' {
			return -1
		}
		return r
	}, norm.NFKD.String(s))
	return latinLetters.Replace(cases.Upper(language.Und).String(bare))
}

// nameKey is what orders the row by name.
func (r *row) nameKey() string {
	key := []rune(r.searched[0])
	return string(key[:min(80, len(key))])
}

func searched(r *row, c *list.List) (texts []string) {
	names := []string{"name", "sku", "description"}
	if c == listtest.Contacts {
		names = []string{"name", "email", "phone", "tin"}
	}
	for _, name := range names {
		if text, ok := r.get(name).(string); ok {
			texts = append(texts, folded(text))
		}
	}
	return texts
}

// found says whether one of the searched fields holds the term.
func found(r *row, term string) bool {
	term = folded(term)
	return slices.ContainsFunc(r.searched, func(text string) bool { return strings.Contains(text, term) })
}

// answer is a page as a client reads it, and what was read for it.
type answer struct {
	rows []json.RawMessage
	next string
	read page.Read
}

// bodyOf is the query's page among the rows that it read.
func bodyOf(q *page.Query, rows page.Read) []byte {
	n := min(q.Limit, len(rows.Rows))
	texts, end := make([]string, n), (*list.Row)(nil)
	for i := range texts {
		texts[i], end = rows.Rows[i].Text(), &rows.Rows[i]
	}
	head, tail, _ := q.Frame(end, n < len(rows.Rows) || !rows.End)
	return []byte(head + strings.Join(texts, ",") + tail)
}

// decodePage reads a page, which must be exactly what the API promises.
func decodePage(t testing.TB, text []byte) answer {
	t.Helper()
	if !utf8.Valid(text) {
		t.Fatalf("not UTF-8: %.200q", text)
	}
	var body struct {
		Data *[]json.RawMessage `json:"data"`
		Page *struct {
			HasMore    *bool           `json:"hasMore"`
			NextCursor json.RawMessage `json:"nextCursor"`
		} `json:"page"`
	}
	d := json.NewDecoder(io.MultiReader(bytes.NewReader(text), strings.NewReader("}")))
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil {
		t.Fatalf("%v in %.200s", err, text)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		t.Fatalf("something follows the page (%v): %.200s", err, text)
	}
	if body.Data == nil || body.Page == nil || body.Page.HasMore == nil || len(body.Page.NextCursor) == 0 {
		t.Fatalf("not all fields of a page: %.200s", text)
	}
	var next *string
	must(json.Unmarshal(body.Page.NextCursor, &next))
	if *body.Page.HasMore != (next != nil) || next != nil && (*next == "" || len(*next) > page.MaxCursor) {
		t.Fatalf("hasMore %v, nextCursor %s", *body.Page.HasMore, body.Page.NextCursor)
	}
	if next == nil {
		next = new(string)
	}
	return answer{rows: *body.Data, next: *next}
}

// decodeRow reads one row: its fields in their order, each once.
func decodeRow(raw []byte) ([]field, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil, fmt.Errorf("%v instead of an object: %w", open, err)
	}
	var fields []field
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		value, err := d.Token()
		if err != nil {
			return nil, err
		}
		fields = append(fields, field{name.(string), value})
	}
	return fields, nil
}

// idOf is the id of a row, its first field. (What rows hold is the oracle's affair.)
func idOf(t testing.TB, raw []byte) string {
	t.Helper()
	const before, length = len(`{"id":"`), 36
	if len(raw) < before+length || string(raw[:before]) != `{"id":"` {
		t.Fatalf("not a row: %.200s", raw)
	}
	return string(raw[before : before+length])
}

// fetch asks for one page.
func fetch(t testing.TB, o *Origin, q page.Query) answer {
	t.Helper()
	var rows page.Read
	var err error
	eventually(t, "a connection, which may take longer than a node waits", func() bool {
		rows, err = o.Fetch(context.Background(), q, "")
		return !errors.Is(err, postgres.ErrUnavailable)
	})
	if err != nil {
		t.Fatalf("%s: %v", describe(q), err)
	}
	page := decodePage(t, bodyOf(&q, rows))
	page.read = rows
	return page
}

// follow puts the query behind its page, as a client with the cursor would.
func follow(t testing.TB, q *page.Query, cursor string) {
	t.Helper()
	after, err := q.ParseCursor(new([]byte), []byte(cursor))
	if err != nil {
		t.Fatalf("%s: cursor %s: %v", describe(*q), cursor, err)
	}
	q.After = after
}

// walk fetches all pages; between them it calls between, if there is one, with
// the ids of the page just read.
func walk(t testing.TB, o *Origin, q page.Query, between func(ids []string)) (ids []string) {
	t.Helper()
	for {
		page := fetch(t, o, q)
		before := len(ids)
		for _, raw := range page.rows {
			ids = append(ids, idOf(t, raw))
		}
		if page.next == "" {
			return ids
		}
		if len(page.rows) != q.Limit {
			t.Fatalf("%s: %d rows on a page that is not the last", describe(q), len(page.rows))
		}
		if between != nil {
			between(ids[before:])
		}
		from := q.After
		follow(t, &q, page.next)
		if q.After == from {
			t.Fatalf("%s: the cursor leads to the page it came from", describe(q))
		}
	}
}
