package follower_test

import (
	"fmt"
	"strings"
	"testing"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/origin/admin"
	"listedge/origin/follower"
)

// shape is a table of somebody else, and a list of it.
type shape struct {
	name, tables, lists string
	steps               []step
}

// step is a statement, and the changes that it makes.
type step struct{ sql, want string }

var shapes = []shape{
	{"products of accounts", `
		CREATE SCHEMA shop;
		CREATE TABLE shop.products (id bigint, account_id int, title text NOT NULL, code text, price_cents int, on_hand int, kind text, deleted_at timestamptz,
			inserted_at timestamptz NOT NULL DEFAULT '2020-01-01Z', PRIMARY KEY (account_id, id))`, `
lists:
  products:
    table: shop.products
    tenant: account_id
    key: id
    live: deleted_at is null
    fields: {id: , title: , code: , priceCents: , onHand: }
    orders: {newest: {by: inserted_at, descending: true}, title: {by: title, fold: true}}
    filters: {stock: {out: on_hand <= 0}, kind: {boxes: kind = 'box'}}
`, []step{
		{"INSERT INTO shop.products VALUES (1, 7, 'a', 'x', 100, 5, 'box')", "products:7[1 boxes @0s]"},
		{"UPDATE shop.products SET on_hand = 0, price_cents = NULL", "products:7[1 out boxes @0s]"},
		{"UPDATE shop.products SET account_id = 8", "products:7[1 gone] products:8[1 out boxes @0s]"},
		{"UPDATE shop.products SET deleted_at = now()", "products:8[1 gone]"},
		{"UPDATE shop.products SET deleted_at = NULL, id = -2", "products:8[-2 out boxes @0s, 1 gone]"},
		{"BEGIN; DELETE FROM shop.products; INSERT INTO shop.products VALUES (-2, 8, 'again', NULL, NULL, NULL, NULL); COMMIT", "products:8[-2 @0s]"},
		{"SELECT pg_logical_emit_message(true, 'listedge', 'purge 00000000-0000-0000-0000-000000000005 8')", "keys:5[any] products:8[any]"},
		{"SELECT pg_logical_emit_message(true, 'listedge', 'purge')", "whole:keys whole:products"},
		{"TRUNCATE shop.products", "whole:products; whole:keys whole:products"},
	}},
	{"people by the first order that there is", `
		CREATE SCHEMA crm;
		CREATE TABLE crm.people (id text NOT NULL, org_id int, full_name text NOT NULL,
			mail text, tel text, vat text, is_vendor bool, created timestamptz NOT NULL DEFAULT '2020-01-01Z');
		CREATE UNIQUE INDEX people_of_org ON crm.people (org_id, id);
		ALTER TABLE crm.people REPLICA IDENTITY FULL, ALTER full_name SET STORAGE EXTERNAL, ALTER vat SET STORAGE EXTERNAL`, `
lists:
  people:
    table: crm.people
    tenant: org_id
    key: id
    fields: {id: , fullName: , mail: , tel: , vat: }
    orders: {created: {by: created}, name: {by: full_name, fold: true}}
    filters: {type: {vendors: is_vendor}}
    search: [fullName, mail]
`, []step{
		{"INSERT INTO crm.people VALUES ('é 1', 3, repeat('x', 5000), 'm')", "people:3[é 1 @0s]"},
		// The old row has the large value.
		{"UPDATE crm.people SET mail = 'n', is_vendor = true", "people:3[é 1 vendors @0s]"},
		{"UPDATE crm.people SET org_id = 4", "people:3[é 1 gone] people:4[é 1 vendors @0s]"},
		// A row without a tenant is nobody's.
		{"UPDATE crm.people SET org_id = NULL", "people:4[é 1 gone] people:[any]"},
		{"UPDATE crm.people SET tel = '1'", "people:[any]"},
		{"UPDATE crm.people SET org_id = 4", "people:4[é 1 vendors @0s] people:[any]"},
		{"UPDATE crm.people SET id = repeat('k', 256)", "people:4[any]"},
		{"UPDATE crm.people SET id = ''", "people:4[any]"},
		{"DELETE FROM crm.people", "people:4[ gone]"},
		{"INSERT INTO crm.people VALUES ('a', NULL, 'n')", "people:[any]"},
		{"DELETE FROM crm.people", "people:[any]"},
	}},
	{"everybody's, in partitions by time", `
		CREATE TABLE events (id bigint GENERATED ALWAYS AS IDENTITY, what text NOT NULL, happened timestamptz NOT NULL,
			PRIMARY KEY (id, happened)) PARTITION BY RANGE (happened);
		CREATE TABLE events_2020 PARTITION OF events FOR VALUES FROM ('2020-01-01') TO ('2021-01-01')`, `
lists:
  events:
    key: id
    fields: {id: , what: , happened: }
    orders: {happened: {by: happened, descending: true}}
`, []step{
		{"INSERT INTO events (what, happened) VALUES ('a', '2020-01-01Z')", "events:[any]"}, // two partitions may have the key
		{"UPDATE events SET what = 'b'", "events:[any]"},
		{"CREATE TABLE events_2021 PARTITION OF events FOR VALUES FROM ('2021-01-01') TO ('2022-01-01')", "whole:events whole:keys"},
		{"UPDATE events SET happened = '2021-05-05Z'", "events:[any]"},
		{"SELECT pg_logical_emit_message(true, 'listedge', 'purge 00000000-0000-0000-0000-000000000005 8')", "events:[any] keys:5[any]"},
	}},
	{"everybody's, by a key alone", `
		CREATE TABLE currencies (code varchar(3) PRIMARY KEY, title text NOT NULL)`, `
lists:
  currencies:
    key: code
    fields: {code: , title: }
    orders: {code: {by: code}}
`, []step{
		{"INSERT INTO currencies VALUES ('EUR', 'Euro')", "currencies:[EUR @EUR]"},
		{"UPDATE currencies SET title = 'euro'", "currencies:[EUR @EUR]"},
		{"UPDATE currencies SET code = 'EU'", "currencies:[EU @EU, EUR gone]"},
		{"DELETE FROM currencies", "currencies:[EU gone]"},
	}},
	{"Odoo's partners", `
		CREATE TABLE res_partner (id serial PRIMARY KEY, company_id int, name varchar NOT NULL, email varchar, active bool,
			customer_rank int, create_date timestamp NOT NULL DEFAULT '2020-01-01');
		CREATE UNIQUE INDEX ON res_partner (company_id, id);
		ALTER TABLE res_partner REPLICA IDENTITY FULL`, `
lists:
  partners:
    table: res_partner
    tenant: company_id
    key: id
    live: active
    fields: {id: , name: , email: , createDate: }
    orders: {name: {by: name, fold: true}}
    filters: {type: {customer: customer_rank > 0}}
`, []step{
		{"INSERT INTO res_partner VALUES (1, 2, 'n', NULL, true, 1)", "partners:2[1 customer @N]"},
		{"UPDATE res_partner SET company_id = NULL", "partners:2[1 gone] partners:[any]"},
		{"UPDATE res_partner SET company_id = 2, active = NULL", "partners:2[1 gone] partners:[any]"},
	}},
	{"Saleor's accounts, by two lists", `
		CREATE TABLE account_user (id int PRIMARY KEY, uuid uuid NOT NULL UNIQUE, email varchar(254) NOT NULL, is_staff bool NOT NULL,
			is_active bool NOT NULL DEFAULT true,
			date_joined timestamptz NOT NULL DEFAULT '2020-01-01Z')`, `
lists:
  users:
    table: account_user
    key: id
    live: is_active
    fields: {id: , email: }
    orders: {joined: {by: date_joined}}
  staff:
    table: account_user
    key: id
    live: is_active and is_staff
    fields: {uuid: , email: }
    orders: {email: {by: email}}
`, []step{
		{"INSERT INTO account_user VALUES (1, '00000000-0000-0000-0000-000000000001', 'a@b', false)", "staff:[1 gone] users:[1 @0s]"},
		{"UPDATE account_user SET is_staff = true", "staff:[1 @a@b] users:[1 @0s]"},
		{"UPDATE account_user SET is_active = false", "staff:[1 gone] users:[1 gone]"},
		{"UPDATE account_user SET id = 2", "staff:[1 gone, 2 gone] users:[1 gone, 2 gone]"},
	}},
	{"Medusa's customers, by two tenants", `
		CREATE TABLE customer (id text NOT NULL, store text NOT NULL, region int NOT NULL, email text,
			deleted_at timestamptz, created_at timestamptz NOT NULL DEFAULT '2020-01-01Z',
			PRIMARY KEY (store, id), UNIQUE (region, id));
		ALTER TABLE customer REPLICA IDENTITY FULL`, `
lists:
  customers:
    table: customer
    tenant: store
    key: id
    live: deleted_at is null
    fields: {id: , email: }
    orders: {created: {by: created_at}}
  regional:
    table: customer
    tenant: region
    key: id
    live: deleted_at is null
    fields: {id: , email: }
    orders: {created: {by: created_at}}
`, []step{
		{"INSERT INTO customer VALUES ('cus_1', 'a store', 4, 'a@b')", "customers:a store[cus_1 @0s] regional:4[cus_1 @0s]"},
		{"UPDATE customer SET store = 'b'", "customers:a store[cus_1 gone] customers:b[cus_1 @0s] regional:4[cus_1 @0s]"},
		{"UPDATE customer SET region = 5", "customers:b[cus_1 @0s] regional:4[cus_1 gone] regional:5[cus_1 @0s]"},
		{"UPDATE customer SET store = repeat('s', 256)", "customers:[any] customers:b[cus_1 gone] regional:5[cus_1 @0s]"}, // no workspace can have it
	}},
	{"odd names and types", `
		CREATE SCHEMA "Our ""own""";
		CREATE TYPE "Our ""own"""."Kind" AS ENUM ('a', 'it''s');
		CREATE DOMAIN "Our ""own""".title AS text CHECK (value <> '');
		CREATE DOMAIN "Our ""own""".kind AS "Our ""own"""."Kind";
		CREATE TABLE "Our ""own"""."The Table" ("Id" int PRIMARY KEY, "Title" "Our ""own""".title NOT NULL, "kind of" "Our ""own""".kind NOT NULL,
			extra jsonb, tags text[],
			size int GENERATED ALWAYS AS (length("Title")) STORED)`, `
lists:
  things:
    table: '"Our ""own"""."The Table"'
    key: Id
    fields: {id: {column: Id}, title: {column: Title}, kind: {column: kind of}, extra: }
    orders: {title: {by: title}}
    filters: {kind: {a: "\"kind of\" = 'a'"}}
`, []step{
		{`INSERT INTO "Our ""own"""."The Table" VALUES (1, 't', 'a', '{"b":  [1]}')`, "things:[1 a @t]"},
		{`UPDATE "Our ""own"""."The Table" SET "kind of" = 'it''s'`, "things:[1 @t]"},
		{`ALTER TYPE "Our ""own"""."Kind" RENAME VALUE 'it''s' TO 'its'`, "whole:keys whole:things"},
		{`ALTER TYPE "Our ""own"""."Kind" RENAME TO "Kinds"`, ""},
		{`UPDATE "Our ""own"""."The Table" SET extra = NULL`, "things:[1 @t]"},
		{`ALTER TABLE "Our ""own"""."The Table" RENAME extra TO more; ALTER TABLE "Our ""own"""."The Table" ADD extra jsonb`, "whole:keys whole:things"},
		{`UPDATE "Our ""own"""."The Table" SET extra = '0'`, "things:[1 @t]"},
	}},
}

// TestShapes follows tables that listedge has not made.
func TestShapes(t *testing.T) {
	t.Parallel()
	for _, s := range shapes {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, server())
			w.exec(s.tables)
			w.describe(s.lists)
			for _, table := range w.lists.Tables() {
				w.exec("ALTER PUBLICATION listedge ADD TABLE " + table.SQL())
			}
			w.awaitFollowing(w.follow())
			w.steps(s.steps)
		})
	}
}

// steps runs the statements and compares what changes name.
func (w *world) steps(steps []step) {
	w.Helper()
	for _, s := range steps {
		w.exec(s.sql)
		if s.want == "" {
			w.quiet()
			continue
		}
		w.named(s.sql, s.want)
	}
}

// What `lists plan` asks for is what a follower needs.
func TestAppliedListsAreFollowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	unnamed := []*list.List{}
	for _, s := range listtest.Shapes {
		w.exec(s.SQL)
	}
	w.describe(listtest.DescriptionText(listtest.Shapes...))
	must(admin.ApplyLists(w.ctx(), w.url, w.lists, func(admin.Step) {}))
	w.awaitFollowing(w.follow())
	for i, s := range listtest.Shapes {
		w.exec(s.Rows(1, 20))
		rows, change := 0, w.newChange()
		for _, p := range change.Touched {
			if p.List != w.lists.Lists[i] || p.All {
				t.Errorf("%s: %.300s", s.Name, touched(change))
			}
			rows += len(p.Rows)
		}
		if rows == 0 {
			unnamed = append(unnamed, w.lists.Lists[i])
		}
	}
	if len(unnamed) != 1 || unnamed[0].Name != "events" { // two partitions may have the same key
		t.Errorf("no rows are named of %v", unnamed)
	}
}

// Partitions have their columns in any order, and rows of theirs are rows of the table while they are a part of it.
func TestPartitionsOfAShape(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec(`CREATE TABLE orders (shop int NOT NULL, id int NOT NULL, note text, total numeric NOT NULL, PRIMARY KEY (shop, id)) PARTITION BY LIST (shop);
		CREATE TABLE orders_1 (gone int, total numeric NOT NULL, note text, passing text, id int NOT NULL, shop int NOT NULL, PRIMARY KEY (shop, id));
		ALTER TABLE orders_1 DROP gone, DROP passing, DROP note;
		ALTER TABLE orders_1 ADD note text;
		ALTER TABLE orders ATTACH PARTITION orders_1 FOR VALUES IN (1);
		CREATE TABLE orders_2 PARTITION OF orders FOR VALUES IN (2) PARTITION BY RANGE (id);
		CREATE TABLE orders_2_small PARTITION OF orders_2 FOR VALUES FROM (MINVALUE) TO (100);
		CREATE TABLE later (LIKE orders INCLUDING ALL);
		ALTER PUBLICATION listedge ADD TABLE orders, later`)
	w.describe(`
lists:
  orders:
    tenant: shop
    key: id
    fields: {id: , note: , total: }
    orders: {total: {by: total}}
`)
	f := w.follow()
	w.awaitFollowing(f)
	const schema = "whole:keys whole:orders"
	w.steps([]step{
		{"INSERT INTO orders VALUES (1, 1, 'n', 1.50), (2, 1, 'm', 2)", "orders:1[1 @15e-1] orders:2[1 @2e0]"},
		{"UPDATE orders SET total = 3", "orders:1[1 @3e0] orders:2[1 @3e0]"},
		{"UPDATE orders SET shop = 2, id = 2 WHERE shop = 1", "orders:1[1 gone] orders:2[2 @3e0]"},
		{"INSERT INTO later VALUES (3, 1, 'l', 1)", ""},
		{"ALTER TABLE orders ATTACH PARTITION later FOR VALUES IN (3)", schema},
		{"UPDATE orders SET note = 'k' WHERE shop = 3", "orders:3[1 @1e0]"},
		{"ALTER TABLE orders DETACH PARTITION later", schema},
		{"UPDATE later SET note = 'j'", ""},
		{"ALTER TABLE orders ALTER note TYPE varchar(9)", schema},
		{"UPDATE orders SET total = 6 WHERE shop = 2 AND id = 1", "orders:2[1 @6e0]"},
		{"ALTER TABLE orders ALTER note TYPE char(9)", schema},
		{"UPDATE orders SET total = 7 WHERE shop = 2 AND id = 1", "orders:2[any]"}, // another type
		{"TRUNCATE orders_2_small", "whole:orders; " + schema},
	})
	epoch := w.epoch
	w.exec("ALTER TABLE orders RENAME total TO amount") // statements cannot read it either
	w.incapable(f, "lacks public.orders, or some")
	w.exec("ALTER TABLE orders RENAME amount TO total; ALTER TABLE orders ALTER note TYPE text")
	w.awaitFollowing(f)
	if w.epoch == epoch {
		t.Error("the epoch goes on")
	}
	w.steps([]step{{"INSERT INTO orders VALUES (1, 9, 'n', -0.5)", "orders:1[9 @-5e-1]"}})
}

// A large value that an update leaves as it was is not in the log. Where it decides whether a list has the row, or
// what filters keep it, or whose it is, no row is named.
func TestLargeValuesThatDecide(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec(`CREATE TABLE notes (id int PRIMARY KEY, state text, kind text, owner text, n int NOT NULL DEFAULT 0);
		ALTER TABLE notes ALTER state SET STORAGE EXTERNAL, ALTER kind SET STORAGE EXTERNAL, ALTER owner SET STORAGE EXTERNAL;
		ALTER PUBLICATION listedge ADD TABLE notes`)
	w.describe(`
lists:
  notes:
    key: id
    live: state <> 'gone' and n < 10
    fields: {id: }
    orders: {n: {by: n}}
    filters: {kind: {short: kind = 'short'}}
`)
	w.awaitFollowing(w.follow())
	w.steps([]step{
		{"INSERT INTO notes VALUES (1, 'new', 'short')", "notes:[1 short @0]"},
		{"UPDATE notes SET state = repeat('x', 5000)", "notes:[1 short @0]"},
		{"UPDATE notes SET n = 1", "notes:[any]"},
		{"UPDATE notes SET n = 10", "notes:[1 gone]"}, // whatever its state is
		{"UPDATE notes SET state = '', n = 2, kind = repeat('x', 5000)", "notes:[1 @2]"},
		{"UPDATE notes SET n = 3", "notes:[any]"},
		{"ALTER TABLE notes REPLICA IDENTITY FULL", "whole:keys whole:notes"},
		{"UPDATE notes SET n = 4", "notes:[1 @4]"}, // the old row has it
	})
}

// What is wrong with the tables of lists is said with their schemas, and with what mends it.
func TestDefectsOfShapes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec(`CREATE SCHEMA "Shop"; CREATE TABLE "Shop"."Goods" (id int, shop int NOT NULL, name text NOT NULL);
		CREATE UNIQUE INDEX "of shop" ON "Shop"."Goods" (shop, id);
		ALTER TABLE "Shop"."Goods" ALTER id SET NOT NULL; CREATE TABLE parent (LIKE "Shop"."Goods" INCLUDING ALL); CREATE SEQUENCE once`)
	w.describe(`
lists:
  goods:
    table: Shop.Goods
    tenant: shop
    key: id
    fields: {id: , name: }
    orders: {name: {by: name}}
`)
	publication := func() (defect, remedy, reason string) {
		p := must2(follower.ReadPublication(w.ctx(), w.db, w.lists))
		defect, remedy = p.Defect()
		reason, _ = p.RowsUnnamed()
		return defect, remedy, reason
	}
	for _, c := range []struct{ sql, defect, remedy, reason string }{
		{"", `lacks "Shop"."Goods", or some`, "listedge lists plan", "which row of Shop.Goods was"},
		{`ALTER PUBLICATION listedge ADD TABLE "Shop"."Goods" (id, shop)`, `lacks "Shop"."Goods", or some`, "listedge lists plan", "which row of Shop.Goods was"},
		{`ALTER PUBLICATION listedge SET TABLE "Shop"."Goods", api_keys, workspaces`, `changed row of "Shop"."Goods"`,
			`ALTER TABLE "Shop"."Goods" REPLICA IDENTITY USING INDEX "of shop"`, "which row of Shop.Goods was"},
		{`ALTER TABLE "Shop"."Goods" REPLICA IDENTITY USING INDEX "of shop"`, "", "", ""},
		{`ALTER TABLE "Shop"."Goods" REPLICA IDENTITY DEFAULT; ALTER TABLE "Shop"."Goods" ADD PRIMARY KEY (id); DROP INDEX "Shop"."of shop"`,
			`changed row of "Shop"."Goods"`, `ALTER TABLE "Shop"."Goods" REPLICA IDENTITY FULL`, "which row of Shop.Goods was"},
		{`ALTER TABLE "Shop"."Goods" REPLICA IDENTITY FULL`, "", "", ""},
		{`ALTER TABLE "Shop"."Goods" DROP CONSTRAINT "Goods_pkey"`, "", "", "which row of Shop.Goods was"},
		{`ALTER TABLE "Shop"."Goods" ADD PRIMARY KEY (shop, id); ALTER TABLE "Shop"."Goods" REPLICA IDENTITY NOTHING`, `changed row of "Shop"."Goods"`,
			`ALTER TABLE "Shop"."Goods" REPLICA IDENTITY DEFAULT`, "which row of Shop.Goods was"},
		{`ALTER TABLE "Shop"."Goods" REPLICA IDENTITY DEFAULT; CREATE TABLE "Shop".child () INHERITS ("Shop"."Goods")`,
			`lacks the rows of "Shop".child, which`, `ALTER TABLE "Shop".child NO INHERIT "Shop"."Goods"`, ""},
		{`DROP TABLE "Shop".child; ALTER TABLE "Shop"."Goods" RENAME name TO title`, `lacks "Shop"."Goods", or some`, "listedge lists plan", ""},
		{`DROP TABLE "Shop"."Goods"`, `lacks "Shop"."Goods", or some`, "listedge lists plan", ""},
	} {
		if c.sql != "" {
			w.exec(c.sql)
		}
		defect, remedy, reason := publication()
		for _, p := range [][2]string{{defect, c.defect}, {remedy, c.remedy}, {reason, c.reason}} {
			if p[1] == "" && p[0] != "" || !strings.Contains(p[0], p[1]) {
				t.Errorf("%s: %q, want %q", c.sql, p[0], p[1])
			}
		}
	}
}

// The lists that a heartbeat names are those whose tables are followed.
func TestHeartbeatsNameTheirLists(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.awaitFollowing(w.follow())
	if text := fmt.Sprint(w.heartbeat().Followed); text != fmt.Sprint(w.lists.Lists) {
		t.Error(text)
	}
}
