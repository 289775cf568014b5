package origin

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
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

// Lists of tables that are none of ours, by their description alone.

// shapesDatabase has the tables of all shapes with some rows, and the indexes of their lists, beside some that
// the tables' owners might have.
func shapesDatabase(t testing.TB, rows int) (url string, conn *pgx.Conn, lists *list.Set) {
	t.Helper()
	url = newDatabase(t)
	conn = connect(t, url)
	for _, shape := range listtest.Shapes {
		exec(t, conn, shape.SQL)
	}
	// Texts compare as bytes, whatever their columns say.
	exec(t, conn, `CREATE COLLATION same (PROVIDER = icu, LOCALE = 'und-u-ks-level1', DETERMINISTIC = false);
		ALTER TABLE crm.people ALTER id TYPE text COLLATE "en-x-icu", ALTER full_name TYPE text COLLATE same, ALTER mail TYPE text COLLATE same;
		ALTER TABLE shop.products ALTER title TYPE text COLLATE same, ALTER kind TYPE text COLLATE "de-x-icu"`)
	for _, shape := range listtest.Shapes {
		exec(t, conn, shape.Rows(1, rows))
	}
	lists = must1(admin.ResolveLists(t.Context(), url, listtest.Description(listtest.Shapes...)))
	for _, l := range lists.Lists {
		for _, x := range l.Indexes() {
			exec(t, conn, fmt.Sprintf("CREATE INDEX %s %s; %s", list.Quote(x.Name), x.SQL, x.Then))
		}
	}
	exec(t, conn, `CREATE INDEX ON shop.products (account_id); CREATE INDEX ON shop.products (deleted_at); CREATE INDEX ON shop.products (kind, on_hand);
		CREATE INDEX ON crm.people (is_vendor, org_id); CREATE INDEX ON log.events (topic); CREATE INDEX ON customer (deleted_at, created_at);
		CREATE INDEX ON res_partner (active, company_id); CREATE INDEX ON account_user (is_staff, is_active)`)
	return url, conn, lists
}

func TestListsOfAnyShapeAreReadByTheirIndexes(t *testing.T) {
	t.Parallel()
	url, conn, lists := shapesDatabase(t, 1500)
	check := func(state string) {
		t.Run(state, func(t *testing.T) {
			for _, l := range lists.Lists {
				t.Run(l.Name, func(t *testing.T) {
					large, small := map[string]string{"lines": "a"}[l.Name], "2"
					if large == "" {
						large = "1"
					}
					if checkEveryPlan(t, url, &list.Set{Lists: []*list.List{l}}, large, small) < 2*len(l.Orders) {
						t.Error("not every shape was asked for")
					}
				})
			}
		})
	}
	check("never analysed")
	exec(t, conn, "ANALYZE")
	check("analysed")
	exec(t, conn, "UPDATE shop.products SET kind = 'service'; UPDATE crm.people SET is_vendor = true; UPDATE account_user SET is_staff = true; ANALYZE")
	check("most rows are of filters that usually keep few")
	exec(t, conn, `DELETE FROM shop.products; DELETE FROM crm.people; DELETE FROM log.events; DELETE FROM customer; DELETE FROM res_partner;
		DELETE FROM account_user; DELETE FROM "My Shop"."Order.Lines"`)
	exec(t, conn, "VACUUM ANALYZE")
	for _, shape := range listtest.Shapes {
		exec(t, conn, shape.Rows(1501, 3000))
	}
	check("there was no row")
}

// plain says in plain SQL what the list of a shape is, in words of their own.
type plain struct {
	row     string // of the response, in JSON
	key     string
	tenants map[string]string // a condition for each; one that is false for those that have no rows
	live    string
	orders  []string
	keeps   map[string]string // by filter and value
	search  []string
	terms   []string
}

const (
	micros = `'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'`
	millis = `'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'`
)

var workspaces = map[string]string{ourWorkspace: "workspace_id = '" + ourWorkspace + "'", otherWorkspace: "workspace_id = '" + otherWorkspace + "'",
	emptyWorkspace: "false"}

var plains = map[string]plain{
	"products": {
		row: `json_build_object('id', id::text, 'title', title, 'code', code, 'priceCents', price_cents, 'onHand', on_hand, 'kind', kind,
			'insertedAt', to_char(inserted_at AT TIME ZONE 'UTC', ` + micros + `))`,
		key: "id", live: "deleted_at IS NULL",
		tenants: map[string]string{"0": "account_id = 0", "2": "account_id = 2", "02": "false", "x": "false", "": "false", "99999999999": "false"},
		orders:  []string{"inserted_at DESC, id DESC", `listedge_name_key(title COLLATE "C"), id`, "price_cents, id", `kind COLLATE "C", id`},
		keeps:   map[string]string{"kind goods": "kind = 'goods'", "kind services": "kind = 'service'", "stock out": "on_hand <= 0"},
		search:  []string{"title", "code"}, terms: []string{"product 9", "c-1", "Ë", "nowhere"},
	},
	"people": {
		row: `json_build_object('id', id, 'fullName', full_name, 'mail', mail, 'tel', tel, 'vat', vat, 'isVendor', is_vendor,
			'createdAt', to_char(created AT TIME ZONE 'UTC', ` + micros + `))`,
		key: "id", live: "true", tenants: map[string]string{"1": "org_id = 1", "-1": "false"},
		orders: []string{`listedge_name_key(full_name COLLATE "C"), id COLLATE "C"`, `created DESC, id COLLATE "C" DESC`},
		keeps:  map[string]string{"type vendor": "is_vendor", "type other": "NOT is_vendor"},
		search: []string{"full_name", "mail", "tel", "vat"}, terms: []string{"person 5", "+49 30 1", "org", "7"},
	},
	"events": {
		row: `json_build_object('id', id, 'at', to_char(at AT TIME ZONE 'UTC', ` + micros + `), 'topic', topic, 'body', body)`,
		key: "id", live: "true", tenants: map[string]string{"": "true"},
		orders: []string{"at DESC, id DESC", `topic COLLATE "C", id`},
		keeps:  map[string]string{"topic three": "topic = 'topic 3'"},
		search: []string{"topic"}, terms: []string{"IC 5", "5"},
	},
	"partners": {
		row: `json_build_object('id', id, 'name', name, 'type', type, 'email', email, 'phone', phone, 'vat', vat, 'isCompany', is_company,
			'latitude', partner_latitude::text, 'createDate', to_char(create_date, ` + micros + `))`,
		key: "id", live: "active", tenants: map[string]string{"1": "company_id = 1", "3": "company_id = 3", "0": "false", "": "false"},
		orders: []string{`listedge_name_key(name) COLLATE "C", id`, "create_date DESC, id DESC"},
		keeps: map[string]string{"type delivery": "type = 'delivery'", "type contact": "type = 'contact'",
			"company yes": "is_company", "company no": "NOT is_company"},
		search: []string{"name", "email", "phone", "vat"}, terms: []string{"partner 3", "11@", "ex"},
	},
	"users": {
		row: `json_build_object('uuid', uuid, 'email', email, 'firstName', first_name, 'lastName', last_name, 'metadata', metadata,
			'dateJoined', to_char(date_joined AT TIME ZONE 'UTC', ` + micros + `))`,
		key: "uuid", live: "is_active", tenants: map[string]string{"": "true"},
		orders: []string{"date_joined DESC, uuid DESC", `email COLLATE "C", uuid`},
		keeps:  map[string]string{"staff yes": "is_staff", "staff no": "NOT is_staff"},
		search: []string{"email", "first_name", "last_name"}, terms: []string{"ana 4", "11@ex", "e 5"},
	},
	"customers": {
		row: `json_build_object('id', id, 'companyName', company_name, 'firstName', first_name, 'lastName', last_name, 'email', email, 'phone', phone,
			'hasAccount', has_account, 'metadata', metadata, 'createdAt', to_char(created_at AT TIME ZONE 'UTC', ` + micros + `),
			'updatedAt', to_char(updated_at AT TIME ZONE 'UTC', ` + micros + `))`,
		key: "id", live: "deleted_at IS NULL", tenants: map[string]string{"": "true"},
		orders: []string{`created_at DESC, id COLLATE "C" DESC`, `updated_at DESC, id COLLATE "C" DESC`, `id COLLATE "C"`},
		search: []string{"company_name", "first_name", "last_name", "email"}, terms: []string{"ana 4", "11@ex", "z"},
	},
	"items": {
		row: `json_build_object('id', id, 'name', name, 'type', type, 'sku', sku, 'description', description, 'unit', unit, 'imagePath', image_path,
			'preferredContactId', preferred_contact_id, 'costPrice', cost_price::text, 'avgCost', avg_cost::text, 'sellingPrice', selling_price::text,
			'taxable', taxable, 'trackStock', track_stock, 'stockOnHand', stock_on_hand::text, 'reorderPoint', reorder_point::text, 'usage30', usage_30,
			'createdAt', to_char(created_at AT TIME ZONE 'UTC', ` + millis + `))`,
		key: "id", live: "active", tenants: workspaces,
		orders: []string{"created_at DESC, id DESC", `listedge_name_key(name) COLLATE "C", id`},
		keeps: map[string]string{"stock tracked": "track_stock", "stock low": "track_stock AND reorder_point IS NOT NULL AND stock_on_hand - reorder_point <= 0",
			"type goods": "type = 'GOODS'", "type services": "type = 'SERVICE'"},
		search: []string{"name", "sku", "description"}, terms: []string{"ab", "ай", "chai", "ΣΊΣ", "%", "555_1", "тут пусто"},
	},
	"contacts": {
		row: `json_build_object('id', id, 'name', name, 'email', email, 'phone', phone, 'address', address, 'tin', tin, 'isCustomer', is_customer,
			'isSupplier', is_supplier, 'createdAt', to_char(created_at AT TIME ZONE 'UTC', ` + millis + `))`,
		key: "id", live: "active", tenants: workspaces,
		orders: []string{"created_at DESC, id DESC", `listedge_name_key(name) COLLATE "C", id`},
		keeps:  map[string]string{"type customer": "is_customer", "type supplier": "is_supplier"},
		search: []string{"name", "email", "phone", "tin"}, terms: []string{"ab", "ай", "chai", "ΣΊΣ", "%", "555_1", "тут пусто"},
	},
	"lines": {
		row: `json_build_object('key', "Key", 'label', "Label", 'mail', mail, 'mood', mood, 'price', price::text, 'ratio', ratio, 'short', short, 'code', code,
			'day', to_char(day, ` + millis + `), 'stamp', to_char(stamp, ` + millis + `), 'meta', meta)`,
		key: `"Key"`, live: "short >= -90", tenants: map[string]string{"a": `"Tenant ""T""" = 'a'`, `b "c"`: `"Tenant ""T""" = 'b "c"'`, "A": "false"},
		orders: []string{`day DESC, "Key" DESC`, `price DESC, "Key" DESC`, `listedge_name_key("Label") COLLATE "C", "Key"`},
		keeps:  map[string]string{"mood good": "mood = 'Good'", "mood bad": "mood = 'it''s bad'", "cheap yes": "price < 10.5"},
		search: []string{`"Label"`, "mail::text"}, terms: []string{"LABEL 3", "a11@", "e"},
	},
}

func TestListsOfAnyShapeAreWhatPlainStatementsSay(t *testing.T) {
	t.Parallel()
	url, conn, lists := shapesDatabase(t, 700)
	compareLists(t, New(openDatabase(t, postgres.Options{URL: url}), lists, nil), conn, lists.Lists...)
}

// compareLists walks the lists with all their tenants, orders, filters and some terms, and asks for their rows by keys.
func compareLists(t *testing.T, o *Origin, conn *pgx.Conn, lists ...*list.List) {
	t.Helper()
	exec(t, conn, "SET search_path = public; SET timezone = UTC")
	for _, l := range lists {
		t.Run(l.Name, func(t *testing.T) {
			p, shown, walks, byKey := plains[l.Name], 0, 0, 0
			if len(p.orders) != len(l.Orders) {
				t.Fatalf("it has %d orders", len(l.Orders))
			}
			for _, tenant := range slices.Sorted(maps.Keys(p.tenants)) {
				for _, keep := range p.matches(l) {
					q := page.Query{List: l, Tenant: tenant, Match: keep.match, Limit: page.MaxLimit}
					byKey += p.compareRows(t, o, conn, q, keep.sql)
					for q.Order = range l.Orders {
						for _, q.Search = range append([]string{""}, p.terms...) {
							q.Limit = []int{7, 50, 100, 20, 2}[walks%5]
							shown += p.compare(t, o, conn, q, keep.sql)
							walks++
						}
					}
				}
			}
			if shown < 1000 || byKey < 50 {
				t.Errorf("only %d rows were shown, and %d by keys", shown, byKey)
			}
		})
	}
}

// mostKeys is how many keys a page of changes asks for.
const mostKeys = page.MaxLimit + page.MaxGone

// compareRows asks for the rows of all keys of the table, and of some that it has not: of other tenants, of rows that are not live or that
// filters hide. The rows come that the list has, in the order of the keys.
func (p plain) compareRows(t *testing.T, o *Origin, conn *pgx.Conn, q page.Query, kept string) (shown int) {
	t.Helper()
	keys := rowsBy[string](conn, fmt.Sprintf(`SELECT k FROM (SELECT (%s)::text AS k FROM %s) t UNION SELECT upper(k) FROM (SELECT (%[1]s)::text AS k FROM %[2]s) t
		UNION SELECT unnest(ARRAY['-1', '0', '32000']) ORDER BY 1`, p.key, q.List.Table.SQL()), pgx.RowTo)
	keys = slices.DeleteFunc(keys, func(text string) bool { _, ok := q.List.ParseKey([]byte(text)); return !ok })
	rand.New(rand.NewPCG(q.Match, 8)).Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	want := map[string]string{}
	for _, row := range p.rows(conn, q, kept) {
		want[row.Key] = row.Text
	}
	for asked := range slices.Chunk(keys, mostKeys) {
		read, err := o.FetchRows(within(t, patience), q, keysOf(q.List, asked...), "")
		if err != nil || !read.End || read.At.StartedAt == "" {
			t.Fatalf("%s of %q: %+v, %v", describe(q), q.Tenant, read.At, err)
		}
		expected := slices.DeleteFunc(asked, func(text string) bool { return want[text] == "" })
		for i := range read.Rows {
			if got := q.List.KeyText(read.Rows[i].Key()); i >= len(expected) || got != expected[i] || !equalJSON(read.Rows[i].Text(), want[got]) {
				t.Fatalf("%s of %q: row %d is %s", describe(q), q.Tenant, i, read.Rows[i].Text())
			}
		}
		if len(read.Rows) != len(expected) {
			t.Fatalf("%s of %q: %d rows, want %d", describe(q), q.Tenant, len(read.Rows), len(expected))
		}
		shown += len(expected)
	}
	return shown
}

// keysOf parses texts of keys.
func keysOf(l *list.List, texts ...string) (keys []string) {
	for _, text := range texts {
		key, ok := l.ParseKey([]byte(text))
		if !ok {
			panic("no key: " + text)
		}
		keys = append(keys, key)
	}
	return keys
}

// rowsBy returns the rows of a statement.
func rowsBy[T any](conn *pgx.Conn, sql string, by pgx.RowToFunc[T]) []T {
	rows, _ := conn.Query(context.Background(), sql) // the rows have the error
	return must1(pgx.CollectRows(rows, by))
}

// plainRow is a row as a plain statement has it.
type plainRow struct{ Key, Text string }

// rows are those of the query's list, in its order.
func (p plain) rows(conn *pgx.Conn, q page.Query, kept string) []plainRow {
	found := "true"
	if q.Search != "" {
		var fields []string
		for _, field := range p.search {
			fields = append(fields, fmt.Sprintf(`position(listedge_fold('%s') IN listedge_fold(coalesce(%s, '') COLLATE "C")) > 0`,
				strings.ReplaceAll(q.Search, "'", "''"), field))
		}
		found = "(" + strings.Join(fields, " OR ") + ")"
	}
	return rowsBy(conn, fmt.Sprintf("SELECT (%s)::text AS a, (%s)::text AS b FROM %s WHERE %s AND %s AND %s AND %s ORDER BY %s",
		p.key, p.row, q.List.Table.SQL(), p.tenants[q.Tenant], p.live, kept, found, p.orders[q.Order]), pgx.RowToStructByPos[plainRow])
}

// keep is the values of filters that a query may have.
type keep struct {
	match uint64
	sql   string
}

// matches returns which values of filters may be chosen together, and what each choice keeps.
func (p plain) matches(l *list.List) []keep {
	all := []keep{{0, "true"}}
	for _, f := range l.Filters {
		for _, chosen := range slices.Clone(all) {
			for _, v := range f.Values {
				all = append(all, keep{chosen.match | v.Bit, chosen.sql + " AND " + p.keeps[f.Name+" "+v.Name]})
			}
		}
	}
	return all
}

// compare walks the query's list, and returns how many rows it has. A verification reads the rows that a page does, and the database folds
// them as the node does.
func (p plain) compare(t *testing.T, o *Origin, conn *pgx.Conn, q page.Query, kept string) int {
	t.Helper()
	want := p.rows(conn, q, kept)
	for n := 0; ; {
		read, err := o.Fetch(within(t, patience), q, "")
		if err != nil {
			t.Fatalf("%s: %v", describe(q), err)
		}
		most := q.Limit + 1 // what is read for pages behind it, too
		if q.After != "" && q.Search == "" {
			most = 4*q.Limit + 1
		}
		if len(read.Rows) != min(most, len(want)-n) || read.End != (len(want)-n < most) {
			t.Fatalf("%s of %q: %d rows and the end %t, of %d rows", describe(q), q.Tenant, len(read.Rows), read.End, len(want)-n)
		}
		for i := range read.Rows {
			got, want := &read.Rows[i], want[n+i]
			if q.List.KeyText(got.Key()) != want.Key || !equalJSON(got.Text(), want.Text) || got.Match&q.Match != q.Match {
				t.Fatalf("%s of %q: row %d is %s, want %v", describe(q), q.Tenant, n+i, got.Text(), want)
			}
		}
		if verified, err := o.Verify(within(t, patience), q, ""); q.Limit > 50 && len(want) > 0 &&
			(err != nil || verified.Misfold != nil || verified.End != read.End || !slices.Equal(verified.Rows, read.Rows) || verified.At.StartedAt == "") {
			t.Fatalf("%s: %d rows are verified, %v, %+v, want %d", describe(q), len(verified.Rows), err, verified.Misfold, len(read.Rows))
		}
		got := read.Rows[:min(q.Limit, len(read.Rows))]
		n += len(got)
		if n == len(want) {
			return n
		}
		q = q.Behind(&got[len(got)-1])
	}
}

// equalJSON reports whether two texts have the same members and values, numbers with the same digits.
func equalJSON(a, b string) bool {
	var values [2]any
	for i, text := range []string{a, b} {
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		must(d.Decode(&values[i]))
	}
	return reflect.DeepEqual(values[0], values[1])
}
