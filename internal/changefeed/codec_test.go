package changefeed_test

import (
	"reflect"
	"testing"
	"time"

	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
)

// described resolves a description of lists of public.things and public.others.
func described(t *testing.T, description string) *list.Set {
	t.Helper()
	var catalogue list.Catalogue
	for _, table := range []string{"things", "others"} {
		catalogue.Relations = append(catalogue.Relations, list.Relation{Name: list.Name{Schema: "public", Table: table}, Kind: "r", Persistence: "p",
			Unique: [][]string{{"id"}}, Columns: []list.RelationColumn{{Name: "id", Type: list.Type{OID: 23, Base: "int4", Name: "integer", Mod: -1}, NotNull: true},
				{Name: "v", Type: list.Type{OID: 25, Base: "text", Name: "text", Mod: -1}, NotNull: true}}})
	}
	d, err := list.Parse("test.yaml", []byte(description))
	if err != nil {
		t.Fatal(err)
	}
	set, err := d.Resolve(&catalogue)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// Nodes of a fleet have different descriptions while it changes its own: each learns of every change of its
// tables, and applies the rows of the lists that it has in the same form.
func TestNodesHaveDifferentDescriptions(t *testing.T) {
	const (
		things = "lists:\n  things: {key: id, fields: {id: , v: }, orders: {id: {by: id}}}\n"
		inner  = "  more: {table: public.things, key: id, fields: {id: }, orders: {id: {by: id}}}\n"
		others = "  others: {key: id, fields: {id: }, orders: {id: {by: id}}}\n"
	)
	writer := described(t, things+others)
	row := listtest.Row(writer.Lists[0], "id", "1", "v", "x")
	keys, tenant := Table{Tenant: maxID}, func(l *list.List) Table { return Table{List: l, Tenant: "a"} }
	written := []changefeed.Touched{{Table: tenant(writer.Lists[0]), Rows: []list.Row{row}}, {Table: keys}}
	for name, c := range map[string]struct {
		reader   *list.Set
		touched  func(own []*list.List) []changefeed.Touched
		followed int // of its lists
	}{
		"the same": {described(t, things), func(own []*list.List) []changefeed.Touched {
			return []changefeed.Touched{{Table: tenant(own[0]), Rows: []list.Row{row}}, {Table: keys}}
		}, 1},
		"two lists of the table": {described(t, things+inner), func(own []*list.List) []changefeed.Touched {
			return []changefeed.Touched{{Table: tenant(own[0]), Rows: []list.Row{row}}, {Table: keys}, changefeed.AllRowsOf(own[1])}
		}, 2},
		"another list of the table": {described(t, "lists:\n"+inner), func(own []*list.List) []changefeed.Touched {
			return []changefeed.Touched{{Table: keys}, changefeed.AllRowsOf(own[0])}
		}, 1},
		"another form of the list": {described(t, "lists:\n  things: {key: id, fields: {v: }, orders: {id: {by: id}}}\n"),
			func(own []*list.List) []changefeed.Touched {
				return []changefeed.Touched{{Table: keys}, changefeed.AllRowsOf(own[0])}
			}, 1},
		"no list of the table": {described(t, "lists:\n"+others), func([]*list.List) []changefeed.Touched { return []changefeed.Touched{{Table: keys}} }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			_, client := startRedis(t)
			add(t, redisLog(client, writer), "a",
				Entry{Position: at(1, 1), Change: &Change{XID: 5, Touched: written}},
				Entry{Position: at(1, 2), Heartbeat: &Heartbeat{Snapshot: "1:1:", Followed: writer.Lists,
					Unsettled: []Change{{XID: 5, Touched: []changefeed.Touched{{Table: keys}, changefeed.AllRowsOf(writer.Lists[0])}}}}})
			entries, err := readLog(inTime(t), redisLog(client, c.reader), "a", Position{}, time.Millisecond)
			if err != nil || len(entries) != 2 || entries[0].Change == nil || entries[1].Heartbeat == nil {
				t.Fatalf("%+v, %v", entries, err)
			}
			if is, want := entries[0].Change.Touched, c.touched(c.reader.Lists); !reflect.DeepEqual(is, want) {
				t.Errorf("%+v, want %+v", is, want)
			}
			h := entries[1].Heartbeat
			if !reflect.DeepEqual(h.Followed, c.reader.Lists[:c.followed]) {
				t.Errorf("follows %v", h.Followed)
			}
			unsettled := []changefeed.Touched{{Table: keys}}
			for _, l := range c.reader.Lists {
				if l.TableID == writer.Lists[0].TableID {
					unsettled = append(unsettled, changefeed.AllRowsOf(l))
				}
			}
			if is := h.Unsettled[0].Touched; !reflect.DeepEqual(is, unsettled) {
				t.Errorf("unsettled %+v, want %+v", is, unsettled)
			}
		})
	}
}
