package load

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"listedge/internal/lists"
)

var smallSpec = SeedSpec{Workspaces: 2, Items: 300, Contacts: 50, Seed: 1}

func seedIsDeterministic(t *testing.T, db database) {
	dump := func(db database, spec SeedSpec) (all [3][][]string) {
		workspaces, err := Seed(t.Context(), db.URL, spec, io.Discard)
		if err != nil || len(workspaces) != spec.Workspaces {
			t.Fatal(workspaces, err)
		}
		all[0] = query(t, db.URL, "SELECT * FROM workspaces WHERE id <> $1 ORDER BY id", db.Workspace)
		for _, w := range workspaces {
			db.Workspace = w
			all[1] = append(all[1], table(t, db, lists.Items)...)
			all[2] = append(all[2], table(t, db, lists.Contacts)...)
		}
		return all
	}
	one := dump(db, smallSpec)
	if len(one[0]) != 2 || len(one[1]) != 600 || len(one[2]) != 100 {
		t.Fatal(len(one[0]), len(one[1]), len(one[2]))
	}
	if !reflect.DeepEqual(one, dump(newDatabase(t, db.server), smallSpec)) {
		t.Error("two databases, two samples")
	}
	// A sample is the same in every release and on every machine: others keep ids and names of it in their own tests.
	hash := fmt.Sprintf("%x", sha256.Sum256(fmt.Append(nil, one[1], one[2])))
	if hash != "fa963ee8cb027a5ca14fa127044d4a3a23ed3a50e31ca9e5930b22ff04c95b08" {
		t.Error("the sample is another one: ", hash)
	}
	other := smallSpec
	other.Seed = -1
	if two := dump(newDatabase(t, db.server), other); one[1][0][0] == two[1][0][0] || reflect.DeepEqual(one[1][0][1:], two[1][0][1:]) {
		t.Error("two seeds, one sample")
	}
}

func seedTwiceIsRefused(t *testing.T, db database) {
	first := must1(Seed(t.Context(), db.URL, smallSpec, io.Discard))
	versions := func() [][]string {
		return append(query(t, db.URL, "SELECT id, xmin FROM workspaces ORDER BY id"), query(t, db.URL, "SELECT id, xmin FROM items ORDER BY workspace_id, id")...)
	}
	before := versions()
	larger := smallSpec
	larger.Workspaces++
	for _, spec := range []SeedSpec{smallSpec, larger} {
		workspaces, err := Seed(t.Context(), db.URL, spec, io.Discard)
		if err == nil || workspaces != nil || !strings.HasSuffix(err.Error(), " is already there; choose another --seed") ||
			!strings.Contains(err.Error(), first[0].String()) && !strings.Contains(err.Error(), first[1].String()) {
			t.Errorf("%v, %v", workspaces, err)
		}
	}
	if !reflect.DeepEqual(before, versions()) {
		t.Error("a refused seed changed something")
	}
}

func seedIsVaried(t *testing.T, db database) {
	var said strings.Builder
	must1(Seed(t.Context(), db.URL, SeedSpec{Workspaces: 1, Items: 5000, Contacts: 1000, Seed: 3}, &said))
	if !strings.HasPrefix(said.String(), "seed: 6000 rows in ") || !strings.HasSuffix(said.String(), " rows/s\n") {
		t.Errorf("said %q", said.String())
	}
	for what, condition := range map[string]string{
		"services":          "count(*) FILTER (WHERE type = 'SERVICE') BETWEEN 150 AND 350 FROM items",
		"low stock":         "count(*) FILTER (WHERE track_stock AND stock_on_hand <= reorder_point) BETWEEN 10 AND 250 FROM items",
		"inactive":          "count(*) FILTER (WHERE NOT active) BETWEEN 50 AND 400 FROM items",
		"nulls":             "count(*) > greatest(count(sku), count(description), count(unit), count(preferred_contact_id)) FROM items",
		"scales":            "count(DISTINCT scale(cost_price)) >= 4 AND count(DISTINCT scale(stock_on_hand)) >= 3 FROM items",
		"ties in createdAt": "count(*) - count(DISTINCT created_at) > 100 FROM items",
		"ties in name":      "count(*) - count(DISTINCT name) > 100 FROM items",
		"many names":        "count(DISTINCT name) > 1500 FROM items",
		"Greek":             "count(*) FILTER (WHERE name ~ '[α-ω]') > 10 FROM items",
		"Cyrillic":          "count(*) FILTER (WHERE name ~ '[а-я]') > 10 FROM items",
		"CJK":               "count(*) FILTER (WHERE name ~ '[一-龥]') > 10 FROM items",
		"Arabic":            "count(*) FILTER (WHERE name ~ '[ء-ي]') > 10 FROM items",
		"emoji":             "count(*) FILTER (WHERE name ~ '[🌶🍏⚙👩🇬☕📦]') > 10 FROM items",
		"years":             "min(created_at) BETWEEN '2019-01-01Z' AND '2019-03-01Z' AND max(created_at) BETWEEN '2025-11-01Z' AND '2026-01-01Z' FROM items",
		"contacts that exist": "bool_and(is_supplier IS TRUE) FROM items i LEFT JOIN contacts c ON (c.workspace_id, c.id) = (i.workspace_id, preferred_contact_id) " +
			"WHERE preferred_contact_id IS NOT NULL",
		"roles": "bool_and(is_supplier OR is_customer) AND bool_or(is_supplier AND is_customer) AND count(*) FILTER (WHERE is_supplier) = 250 " +
			"FROM contacts",
		"statistics": "bool_and(reltuples > 0) FROM pg_class WHERE relname IN ('items', 'contacts')",
	} {
		if got := query(t, db.URL, "SELECT "+condition); got[0][0] != "t" {
			t.Errorf("%s: not so: %s", what, condition)
		}
	}
}

func seedCancelled(t *testing.T, db database) {
	spec := SeedSpec{Workspaces: 3, Items: 200, Contacts: 100, Seed: 5}
	all := must1(Seed(t.Context(), newDatabase(t, db.server).URL, spec, io.Discard))
	// Another makes the second workspace at the same time, so that Seed waits for its end.
	blocker := open(t, db.URL)
	defer blocker.Close(context.Background())
	tx := must1(blocker.Begin(t.Context()))
	must1(tx.Exec(t.Context(), "INSERT INTO workspaces (id, name) VALUES ($1, 'x')", all[1]))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		defer cancel()
		for t.Context().Err() == nil && query(t, db.URL, "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'")[0][0] == "0" {
		}
	}()
	workspaces, err := Seed(ctx, db.URL, spec, io.Discard)
	if !errors.Is(err, context.Canceled) || len(workspaces) != 1 {
		t.Fatal(workspaces, err)
	}
	must(tx.Rollback(t.Context()))
	got := query(t, db.URL, "SELECT w.id, (SELECT count(*) FROM items WHERE workspace_id = w.id) FROM workspaces w WHERE id <> $1", db.Workspace)
	if want := [][]string{{all[0].String(), fmt.Sprint(spec.Items)}}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
