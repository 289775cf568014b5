package cache_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"listedge/cache"
	"listedge/internal/boottime/boottimetest"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
)

// track asks for a page, and reads from there.
func track(c *opened, q *page.Query, from page.Tracking, d cache.Directives, to origin) (cache.Tracked, error) {
	c.origins.set(q, to)
	return c.Track(q, from, d, func() {})
}

// A round that ends, changes of many rows and of large ones, and what bounds their pages: 4 MiB of rows, and a header of 32
// keys and 1,280 bytes.
func TestTrackBounds(t *testing.T) {
	c := open(t, cache.Options{Bound: patient, Memory: 256 << 20})
	f := follow(c)
	q := &page.Query{List: listtest.Items, Tenant: "1", Limit: 100}
	first, err := track(c, q, page.Tracking{}, cache.Directives{}, f.reads(page.Read{End: true}))
	if err != nil || !first.Ended || first.Kind != cache.Full || first.Cause != cache.FullFirst || first.Source != cache.Origin {
		t.Fatalf("%+v, %v", first, err)
	}
	if again, err := track(c, q, first.Next, cache.Directives{OnlyIfCached: true}, fails(errors.New("asked"))); err != nil || again.Kind != cache.NoChange ||
		!again.Ended {
		t.Fatalf("%+v, %v", again, err)
	}
	var rows []list.Row
	for i := range 10 {
		rows = append(rows, listtest.Item(i, "description", strings.Repeat("x", 1<<20)))
	}
	for i := range 50 {
		rows = append(rows, list.GoneRow(listtest.Key(listtest.ID(100+i))))
	}
	f.change(q, rows...)
	f.beat()
	if _, err := track(c, q, first.Next, cache.Directives{OnlyIfCached: true}, fails(errors.New("asked"))); err != nil { // the list is held whole
		t.Fatal(err)
	}
	at, pages, shown, gone := first.Next, 0, 0, 0
	for ended := false; !ended; pages++ {
		p, err := track(c, q, at, cache.Directives{}, fails(errors.New("asked")))
		if err != nil {
			t.Fatal(err)
		}
		size, header := 0, []byte(nil)
		for _, row := range p.Rows {
			size += len(row.Text())
		}
		for _, key := range p.Gone {
			header = append(page.AppendHeaderText(header, key), ", "...)
		}
		if size > page.MaxBytes || len(p.Gone) > page.MaxGone || len(header) > page.MaxGoneBytes+2 || !p.Covers.None {
			t.Errorf("a page of %d bytes, %d bytes of a header", size, len(header))
		}
		at, ended, shown, gone = p.Next, p.Ended, shown+len(p.Rows), gone+len(p.Gone)
	}
	if shown != 10 || gone != 50 || pages != 5 {
		t.Errorf("%d rows, %d gone on %d pages", shown, gone, pages)
	}
}

// Rows that are not held are read by key, in one statement, and only if they may be.
func TestTrackReadsByKey(t *testing.T) {
	c := open(t, cache.Options{Bound: patient})
	f := follow(c)
	q := &page.Query{List: listtest.Items, Tenant: "1", Limit: 100}
	first, err := track(c, q, page.Tracking{}, cache.Directives{}, f.reads(page.Read{Rows: rowsOf("a", "b"), End: false}))
	if err != nil || first.Ended || first.Covers.Through == "" {
		t.Fatalf("%+v, %v", first, err)
	}
	q2 := &page.Query{List: listtest.Items, Tenant: "2", Limit: 100}
	ended, err := track(c, q2, page.Tracking{}, cache.Directives{}, f.reads(page.Read{End: true}))
	if err != nil {
		t.Fatal(err)
	}
	c.Reset("epoch", "gap")
	f.beat()
	f.change(q2, rowAt(1, "a"), rowAt(2, "b"), rowAt(3, "c"))
	f.beat()
	if _, err := track(c, q2, ended.Next, cache.Directives{OnlyIfCached: true}, fails(nil)); !errors.Is(err, cache.ErrNotStored) {
		t.Errorf("without a read: %v", err)
	}
	whole, err := track(c, q2, ended.Next, cache.Directives{}, f.reads(page.Read{Rows: rowsOf("a"), End: true}))
	if err != nil || whole.Cause != cache.FullJoined {
		t.Fatalf("%+v, %v", whole, err)
	}
	f.change(q, rowAt(5, "e"), rowAt(6, "f"))
	f.beat()
	asked := 0
	to := fails(errors.New("a page is asked"))
	to.Rows = func(_ context.Context, keys []string, run string) (page.Read, error) {
		asked++
		if len(keys) != 2 || run != "run" {
			t.Errorf("%d keys of run %s", len(keys), run)
		}
		return f.reads(page.Read{Rows: []list.Row{rowAt(6, "f")}, End: true}).Primary(t.Context(), run)
	}
	from := page.Tracking{Kind: page.AtEnd, Epoch: whole.Next.Epoch, Seen: whole.Next.Seen}
	p, err := track(c, q, from, cache.Directives{}, to)
	if err != nil || asked != 1 || len(p.Rows) != 1 || len(p.Gone) != 1 || p.Kind != cache.Delta || p.Source != cache.Origin || !p.Ended {
		t.Errorf("%+v, %v, asked %d times", p, err, asked)
	}
	f.run = "another"
	if _, err := track(c, q, from, cache.Directives{}, to); err == nil {
		t.Error("another run answers")
	}
}

// A page ends before a row that cannot be shown, whatever is in front of it: a row that is gone, one that the list has not,
// one that was read. The page that begins with it fails until the row changes.
func TestTrackEndsBeforeARowThatCannotBeShown(t *testing.T) {
	c := open(t, cache.Options{Bound: patient})
	f := follow(c)
	q := queryOf("1")
	q.Limit = 100
	at := page.Tracking{Kind: page.AtEnd, Epoch: page.EpochOf("epoch", q.List), Seen: f.at}
	database := map[string]list.Row{}
	for _, n := range []int{2, 3, 4} {
		database[listtest.Key(listtest.ID(n))] = listtest.Item(n)
	}
	bad := listtest.Key(listtest.ID(3))
	to := origin{Rows: func(_ context.Context, keys []string, run string) (page.Read, error) {
		read := page.Read{End: true}
		for _, key := range keys {
			row, has := database[key]
			switch {
			case key == bad && read.Rows == nil:
				return read, page.ErrRow
			case key == bad:
				read.End = false
			case has && read.End:
				read.Rows = append(read.Rows, row, row) // as of two partitions
			}
		}
		return f.reads(read).Primary(t.Context(), run)
	}}
	gone := func(n int) list.Row { return list.GoneRow(listtest.Key(listtest.ID(n))) }
	for _, step := range []struct {
		rows []list.Row // that have changed
		told string     // of the pages until one fails or the round ends
		err  error
	}{
		{[]list.Row{gone(9), listtest.Item(1), listtest.Item(2), listtest.Item(3), listtest.Item(4)}, "-9 -1 +2", page.ErrRow},
		{[]list.Row{gone(5), listtest.Item(1), listtest.Item(3)}, "-5 +4 -1", page.ErrRow},
		{[]list.Row{listtest.Item(8), listtest.Item(1), listtest.Item(3)}, "-8 -1", page.ErrRow},
		{[]list.Row{gone(7), listtest.Item(3)}, "-7", page.ErrRow},
		{[]list.Row{listtest.Item(3)}, "+3", nil},
	} {
		f.change(q, step.rows...)
		f.beat()
		if step.err == nil {
			bad, database[bad] = "", listtest.Item(3)
		}
		var told []string
		var err error
		for ended := false; !ended && err == nil; {
			var p cache.Tracked
			p, err = track(c, q, at, cache.Directives{}, to)
			if err != nil {
				break
			}
			for _, id := range p.Gone {
				told = append(told, "-"+strings.TrimLeft(id, "0-"))
			}
			for _, row := range p.Rows {
				told = append(told, "+"+strings.TrimLeft(q.List.KeyText(row.Key()), "0-"))
			}
			at, ended = p.Next, p.Ended
		}
		if got := strings.Join(told, " "); got != step.told || !errors.Is(err, step.err) {
			t.Errorf("%q, %v; want %q, %v", got, err, step.told, step.err)
		}
	}
}

// Nothing is answered where nothing is proven.
func TestTrackNeedsAProof(t *testing.T) {
	c := open(t, cache.Options{Bound: patient})
	q := queryOf("1")
	f := follow(c)
	ahead := page.Tracking{Kind: page.AtEnd, Epoch: page.EpochOf("epoch", q.List), Seen: f.at}
	ahead.Seen.N++
	answered := make(chan error)
	go func() {
		p, err := track(c, q, ahead, cache.Directives{}, fails(errors.New("asked")))
		if err == nil && (p.Kind != cache.NoChange || p.Next.Seen != ahead.Seen) {
			err = errors.New("an earlier state")
		}
		answered <- err
	}()
	f.beat() // it waits for this one, whether it comes before or after
	if err := <-answered; err != nil {
		t.Error(err)
	}
	short := open(t, cache.Options{Bound: 1})
	follow(short)
	byAge := open(t, cache.Options{Bound: 1})
	byAge.SetTTLMode(true)
	for why, c := range map[string]*opened{"TTL mode": byAge, "an old proof": short, "no log": open(t, cache.Options{Bound: 1})} {
		if _, err := track(c, q, page.Tracking{}, cache.Directives{}, fails(errors.New("asked"))); !errors.Is(err, cache.ErrUnproven) {
			t.Errorf("%s: %v", why, err)
		}
	}
}

// A page of a round says how long ago it was known to equal the database, by what was proven before it was made. The time of its
// statement counts.
func TestTrackTellsTheAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, cache.Options{Bound: patient})
		f := follow(c)
		boottimetest.Pass(200 * time.Millisecond)
		q := queryOf("1")
		from := page.Tracking{Kind: page.AtEnd, Epoch: page.EpochOf("epoch", q.List), Seen: f.at}
		if p, err := track(c, q, from, cache.Directives{}, fails(errors.New("asked"))); err != nil || p.Age != 200*time.Millisecond {
			t.Errorf("%+v, %v", p, err)
		}
		reads := f.reads(page.Read{End: true})
		slow := origin{Primary: func(ctx context.Context, run string) (page.Read, error) {
			boottimetest.Pass(100 * time.Millisecond)
			return reads.Primary(ctx, run)
		}}
		if p, err := track(c, q, page.Tracking{}, cache.Directives{}, slow); err != nil || p.Age != 300*time.Millisecond {
			t.Errorf("%+v, %v", p, err)
		}
	})
}

// A proof has to be younger than the request where the client asks for that, or knows another epoch.
func TestTrackNeedsAYoungProof(t *testing.T) {
	c := open(t, cache.Options{Bound: 300 * time.Millisecond})
	q := queryOf("1")
	for why, from := range map[string]page.Tracking{"no-cache": {}, "another epoch": {Kind: page.AtEnd, Epoch: 1}} {
		follow(c)
		p, err := track(c, q, from, cache.Directives{NoCache: from.Kind == page.Untracked}, brings("a"))
		if !errors.Is(err, cache.ErrUnproven) {
			t.Errorf("%s: %+v, %v", why, p, err)
		}
		p, err = track(c, q, from, cache.Directives{NoCache: from.Kind == page.Untracked, OnlyIfCached: true}, brings("a"))
		if !errors.Is(err, cache.ErrNotStored) {
			t.Errorf("%s, and nothing is waited for: %+v, %v", why, p, err)
		}
	}
}

// A whole list that is under way in another epoch begins anew.
func TestTrackBeginsAnewInAnotherEpoch(t *testing.T) {
	c := open(t, cache.Options{Bound: patient})
	f := follow(c)
	q := queryOf("1")
	row := rowAt(1, "a")
	from := page.Tracking{Kind: page.InFull, Epoch: 1, Seen: f.at, After: q.List.Position(&row, 0)}
	answered := make(chan cache.Tracked)
	go func() {
		p, err := track(c, q, from, cache.Directives{}, f.reads(page.Read{End: true}))
		if err != nil {
			t.Error(err)
		}
		answered <- p
	}()
	for {
		select {
		case p := <-answered:
			if p.Cause != cache.FullEpoch || p.Covers.After != "" || p.Next.Epoch != page.EpochOf("epoch", q.List) {
				t.Errorf("%+v", p)
			}
			return
		default:
			f.beat() // the node's epoch is not over
		}
	}
}
