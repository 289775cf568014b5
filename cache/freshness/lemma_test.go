package freshness

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

// The lemma of Extent, tried out: lists of up to six rows, every pair of changes, every
// page, read at every point between them, on the primary, on a standby, and by way of
// Redis. A page that the rules keep is what would be read anew.

// item is a row. Its version stands for what no list goes by.
type item struct {
	id      int
	created int64
	name    string
	found   bool // by the search
	flags   lists.Flags
	version int
	active  bool
}

// items are the rows of one workspace, by id.
type items [8]*item

// row is how the log names it.
func (i *item) row() lists.Row {
	r := lists.Row{ID: rowID(i.id), Flags: i.flags, CreatedAt: i.created, NameKey: nameKey(i.name)}
	if r.NameKey != "" {
		r.Text = fmt.Sprintf(`{"name":"","sku":null,"description":"%t"}`, i.found)
	}
	return r
}

// nameKey returns the name. That of é is not known, nor is the row's text.
func nameKey(name string) string {
	if name == "é" {
		return ""
	}
	return name
}

// operation is what a transaction does to one row. It returns false if that cannot be done.
type operation struct {
	kind string
	do   func(*items) (row lists.Row, ok bool)
}

// with changes a copy of a row that is there.
func with(kind string, id int, change func(*item) (ok bool)) operation {
	return operation{kind, func(all *items) (row lists.Row, ok bool) {
		if all[id] == nil {
			return row, false
		}
		changed := *all[id]
		if ok = change(&changed); !ok {
			return row, false
		}
		changed.version++
		all[id] = &changed
		if row = changed.row(); !changed.active {
			row = gone(id)
		}
		return row, true
	}}
}

// operations are all that may be done to lists with rows of these ids, and with one more.
func operations(ids []int) (all []operation) {
	active := func(change func(*item)) func(*item) bool {
		return func(i *item) bool {
			change(i)
			return i.active
		}
	}
	for _, id := range ids {
		add := func(kind string, change func(*item) bool) {
			all = append(all, with(kind, id, change))
		}
		add("update", active(func(*item) {}))
		for _, kind := range []string{"delete", "move away"} {
			all = append(all, operation{kind, func(list *items) (lists.Row, bool) {
				ok := list[id] != nil
				list[id] = nil
				return gone(id), ok
			}})
		}
		add("deactivate", func(i *item) bool { i.active = !i.active; return !i.active })
		add("activate", func(i *item) bool { i.active = !i.active; return i.active })
		for _, name := range []string{"a", "c", "e", "é", "x"} {
			add("rename", active(func(i *item) { i.name = name }))
		}
		for _, at := range []int64{5, 20, 25, 45} {
			add("redate", active(func(i *item) { i.created = at }))
		}
		add("search", active(func(i *item) { i.found = !i.found }))
		add("stock", active(func(i *item) { i.flags ^= lists.Low }))
		add("type", active(func(i *item) { i.flags ^= lists.Goods | lists.Services }))
	}
	const another = 7
	for n, at := range []int64{5, 20, 25, 45} {
		all = append(all, operation{"insert", func(list *items) (lists.Row, bool) {
			if list[another] != nil {
				return lists.Row{}, false
			}
			list[another] = &item{id: another, created: at, name: []string{"a", "c", "é", "x"}[n], found: n%2 == 0, flags: lists.Tracked | lists.Goods, active: true}
			return list[another].row(), true
		}})
	}
	return all
}

// firstItems are a list to begin with: with ties, an inactive row, and every flag.
func firstItems(n int) (list items, ids []int) {
	for i, first := range []item{
		{created: 20, name: "c", found: true, flags: lists.Tracked | lists.Goods, active: true},
		{created: 10, name: "b", flags: lists.Tracked | lists.Low | lists.Goods, active: true},
		{created: 20, name: "b", found: true, flags: lists.Services, active: true},
		{created: 30, name: "é", found: true, flags: lists.Tracked | lists.Low | lists.Goods, active: true},
		{created: 25, name: "d", found: true, flags: lists.Goods},
		{created: 40, name: "d", flags: lists.Tracked | lists.Goods, active: true},
	}[:n] {
		first.id = i + 1
		list[first.id] = &first
		ids = append(ids, first.id)
	}
	return list, ids
}

// modelPage is a page of a list.
type modelPage struct {
	pageKind
	after *item // nil = from the start
}

type pageKind struct {
	order    lists.Order
	filter   lists.Flags
	searched bool
	limit    int
}

// before says whether the list has a before b.
func (p *modelPage) before(a, b *item) bool {
	x, y := rowID(a.id), rowID(b.id)
	if p.order == lists.ByName {
		return cmp.Or(cmp.Compare(a.name, b.name), bytes.Compare(x[:], y[:])) < 0
	}
	return cmp.Or(cmp.Compare(a.created, b.created), bytes.Compare(x[:], y[:])) > 0
}

// read is what the page's statement returns.
func (p *modelPage) read(list *items) (rows []*item) {
	for _, i := range list {
		if i != nil && i.active && i.flags&p.filter == p.filter && (i.found || !p.searched) && (p.after == nil || p.before(p.after, i)) {
			rows = append(rows, i)
		}
	}
	slices.SortFunc(rows, func(a, b *item) int {
		if p.before(a, b) {
			return -1
		}
		return 1
	})
	return rows[:min(len(rows), p.limit+1)]
}

// body is what the client gets: the rows, and whether more follow.
func (p *modelPage) body(rows []*item) (b modelBody) {
	for n, i := range rows[:min(len(rows), p.limit)] {
		b.rows[n] = *i
	}
	b.more = len(rows) > p.limit
	return b
}

type modelBody struct {
	rows [4]item
	more bool
}

// extent is what the origin says that the page shows.
func (p *modelPage) extent(rows []*item) *Extent {
	e := &Extent{Order: p.order, Filter: p.filter, After: Bound{Kind: Open}, End: Bound{Kind: Open}}
	if p.searched {
		e.Search = "TRUE"
	}
	bound := func(i *item) Bound {
		return Bound{Kind: At, CreatedAt: i.created, NameKey: nameKey(i.name), ID: rowID(i.id)}
	}
	if p.after != nil {
		e.After = bound(p.after)
	}
	if len(rows) > p.limit {
		e.End = bound(rows[p.limit])
	}
	for _, i := range rows {
		e.Tags = append(e.Tags, Tag(rowID(i.id)))
	}
	return e
}

// pages are all pages of lists that begin with these rows.
func pages(list *items) (all []*modelPage) {
	for order := range lists.ByName + 1 {
		for _, filter := range []lists.Flags{0, lists.Tracked, lists.Tracked | lists.Low, lists.Goods, lists.Services} {
			for _, searched := range []bool{false, true} {
				for limit := 1; limit <= 3; limit++ {
					all = append(all, &modelPage{pageKind{order, filter, searched, limit}, nil})
					for _, after := range list {
						if after != nil {
							all = append(all, &modelPage{pageKind{order, filter, searched, limit}, after})
						}
					}
				}
			}
		}
	}
	return all
}

// lemma counts the pages that were kept.
type lemma struct {
	t     *testing.T
	kept  map[string]int // by the kind of a change, and by how
	pages map[pageKind]int
}

// state is a version of the rows, and what pages show of it.
type state struct {
	bodies  []modelBody
	extents []*Extent
}

func stateOf(list items, of []*modelPage) *state {
	s := &state{}
	for _, p := range of {
		rows := p.read(&list)
		s.bodies, s.extents = append(s.bodies, p.body(rows)), append(s.extents, p.extent(rows))
	}
	return s
}

// entry is a page that was read from a state.
func (s *state) entry(n int, point ReadPoint) *Validity {
	return &Validity{ReadPoint: point, Extent: s.extents[n]}
}

func snapshot(xmax uint64, running ...uint64) ReadPoint {
	return ReadPoint{Snapshot: changefeed.Snapshot{Xmin: 100, Xmax: xmax, Running: running}}
}

// try tells a tracker of two changes, of transactions 100 and 101, and compares every
// page that it keeps with one that is read anew. apart is what a statement reads that
// sees the second one alone; nil = none does.
func (l *lemma) try(name string, of []*modelPage, before, between, after, apart *state, changes [2]changefeed.Change, kinds [2]string) {
	t := NewTracker(time.Hour, time.Hour, &changefeed.Followed{})
	t.Reset("e")
	begin := changefeed.Position{Term: 1, N: 1}
	t.ValidThrough(changefeed.Proof{At: begin, First: begin, Server: "s/1"}, 0, 0)
	admit := func(v *Validity) bool { return t.Admit(t.Begin(0, 0), v, listA, 0) == Admitted }
	check := func(n int, kept bool, read, now *state, how string, concerning ...string) {
		if !kept {
			return
		}
		if read.bodies[n] != now.bodies[n] {
			l.t.Fatalf("%s, %s, page %+v: kept %+v instead of %+v", name, how, *of[n], read.bodies[n], now.bodies[n])
		}
		l.kept[how]++
		l.pages[of[n].pageKind]++
		for _, kind := range concerning {
			l.kept[kind]++
		}
	}
	var early, untouched, second []*Validity // read before both, and before the second
	for n := range of {
		early = append(early, before.entry(n, snapshot(100)))
		untouched = append(untouched, before.entry(n, snapshot(100)))
		if !admit(early[n]) || !admit(untouched[n]) {
			l.t.Fatal("a page was not admitted before anything changed")
		}
	}
	t.Changed(changefeed.Position{Term: 1, N: 2}, &changes[0])
	for n := range of {
		check(n, t.IsFresh(early[n], time.Hour-1), before, between, "kept in memory", kinds[0])
		check(n, admit(before.entry(n, snapshot(101, 100))), before, between, "read before the first change", kinds[0])
		check(n, admit(before.entry(n, ReadPoint{Server: "s/1", LSN: 99})), before, between, "read from a standby before the first change", kinds[0])
		second = append(second, between.entry(n, snapshot(101)))
		if !admit(second[n]) {
			l.t.Fatal("a page that shows the first change was not admitted")
		}
	}
	t.Changed(changefeed.Position{Term: 1, N: 3}, &changes[1])
	for n := range of {
		check(n, t.IsFresh(early[n], time.Hour-1), before, after, "kept in memory twice", kinds[:]...)
		check(n, t.IsFresh(untouched[n], time.Hour-1), before, after, "kept in memory over both", kinds[:]...)
		check(n, t.IsFresh(second[n], time.Hour-1), between, after, "kept in memory after the first", kinds[1])
		check(n, admit(before.entry(n, snapshot(100))), before, after, "read before both", kinds[:]...)
		check(n, admit(between.entry(n, snapshot(102, 101))), between, after, "read between them", kinds[1])
		check(n, admit(between.entry(n, ReadPoint{Server: "s/1", LSN: 100})), between, after, "read from a standby between them", kinds[1])
		check(n, admit(before.entry(n, ReadPoint{Server: "s/1", LSN: 99})), before, after, "read from a standby before both", kinds[:]...)
		if apart != nil {
			check(n, admit(apart.entry(n, snapshot(102, 100))), apart, after, "read with the second alone", kinds[0])
		}
		for at, read := range []*state{before, between} {
			v := read.entry(n, snapshot(100+uint64(at)))
			v.ReadPoint.Snapshot.Xmin += uint64(at)
			v.Epoch, v.Position = "e", changefeed.Position{Term: 1, N: uint64(at + 1)}
			check(n, t.ValidateFromRedis(v, listA, 0), read, after, "from Redis", kinds[at:]...)
		}
	}
}

func TestLemma(t *testing.T) {
	l := &lemma{t, map[string]int{}, map[pageKind]int{}}
	pairs, tried := 0, 0
	for size := range 7 {
		list, ids := firstItems(size)
		var of []*modelPage
		for n, p := range pages(&list) {
			if n%lemmaPages == size%lemmaPages {
				of = append(of, p)
			}
		}
		before := stateOf(list, of)
		for a, first := range operations(append(ids, 7)) {
			between := list
			firstRow, ok := first.do(&between)
			if !ok {
				continue
			}
			betweenState := stateOf(between, of)
			changes := [2]changefeed.Change{{XID: 100, LSN: 100, Lists: []changefeed.List{listA}, Rows: [][]lists.Row{{firstRow}}}}
			for b, second := range operations(append(ids, 7)) {
				after := between
				row, ok := second.do(&after)
				if !ok {
					continue
				}
				if pairs++; size > lemmaWhole && pairs%lemmaShare != 0 {
					continue
				}
				tried++
				changes[1] = changefeed.Change{XID: 101, LSN: 101, Lists: []changefeed.List{listA}, Rows: [][]lists.Row{{row}}}
				var apart *state
				if alone := list; firstRow.ID != row.ID {
					if _, ok := second.do(&alone); ok {
						apart = stateOf(alone, of)
					}
				}
				name := fmt.Sprintf("%d rows, %s (%d), %s (%d)", size, first.kind, a, second.kind, b)
				l.try(name, of, before, betweenState, stateOf(after, of), apart, changes, [2]string{first.kind, second.kind})
			}
		}
	}
	t.Logf("%d pairs of changes; kept: %v", tried, l.kept)
	kinds := []string{"kept in memory", "kept in memory twice", "kept in memory over both", "kept in memory after the first",
		"read before the first change", "read before both", "read between them", "read with the second alone",
		"read from a standby before the first change", "read from a standby between them", "read from a standby before both", "from Redis"}
	for _, o := range operations([]int{1}) {
		kinds = append(kinds, o.kind)
	}
	for _, kind := range kinds {
		if l.kept[kind] == 0 {
			t.Errorf("no page was kept: %s", kind)
		}
	}
	for _, p := range pages(&items{}) {
		if l.pages[p.pageKind] == 0 {
			t.Errorf("no page was kept: %+v", p.pageKind)
		}
	}
}
