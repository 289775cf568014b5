package changefeed_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/world"
)

func TestLogs(t *testing.T) {
	_, client := startRedis(t)
	t.Run("local", func(t *testing.T) { testLog(t, func() Log { return changefeed.NewLocal() }) })
	t.Run("redis", func(t *testing.T) {
		testLog(t, func() Log { client.FlushAll(t.Context()); return redisLog(client) })
	})
}

// The log of a simulated fleet is one, too.
func TestALogInASimulatedRedis(t *testing.T) {
	testLog(t, func() Log { return redisLog(standIn(t)) })
}

// testLog is the suite that every Log passes.
func testLog(t *testing.T, empty func() Log) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, log Log, epoch string)
	}{
		{"nothing", testNothing},
		{"order", testOrder},
		{"fencing", testFencing},
		{"many at once", testBatches},
		{"blocking", testBlocking},
		{"trim", testTrim},
		{"the checkpoint", testCheckpoint},
		{"epochs are apart", testEpochsApart},
		{"the epoch", testEpoch},
		{"a proof is waited for", testHurry},
		{"round trip", testRoundTrip},
		{"a read at the limit is cut", testCut},
		{"nothing is appended once another epoch is named", testSuperseded},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, empty(), "epoch of "+test.name) })
	}
}

// standIn is a client of a simulated Redis.
func standIn(t *testing.T) *redis.Client {
	client := world.NewRedis("stand-in", time.Now).Client()
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func inTime(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	t.Cleanup(cancel)
	return ctx
}

// beat is an entry that differs from all others.
func beat(term, n uint64) Entry {
	return Entry{Position: Position{term, n}, Heartbeat: &Heartbeat{LSN: term<<32 | n, Snapshot: "1:1:"}}
}

func add(t *testing.T, log Log, epoch string, entries ...Entry) {
	t.Helper()
	for _, e := range entries {
		if err := log.Append(inTime(t), epoch, e); err != nil {
			t.Fatalf("append %s: %v", e.Position, err)
		}
	}
}

// holds checks what a reader finds after a position.
func holds(t *testing.T, log Log, epoch string, after Position, want ...Entry) {
	t.Helper()
	got, err := readLog(inTime(t), log, epoch, after, time.Millisecond)
	if err != nil || len(got) != len(want) {
		t.Fatalf("after %s: %v, %v; want %v", after, positions(got), err, positions(want))
	}
	for i := range want {
		if h := got[i].Heartbeat; h != nil && want[i].Heartbeat != nil { // which the log itself adds
			h.LogServer, h.After = want[i].Heartbeat.LogServer, want[i].Heartbeat.After
		}
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Fatalf("after %s, entry %d: %+v; want %+v", after, i, got[i], want[i])
		}
	}
}

func positions(entries []Entry) (all []string) {
	for _, e := range entries {
		all = append(all, e.Position.String())
	}
	return all
}

func ends(t *testing.T, log Log, epoch string, want Position) {
	t.Helper()
	if last, err := log.Last(inTime(t), epoch); err != nil || last != want {
		t.Fatalf("last is %s, %v; want %s", last, err, want)
	}
}

func testNothing(t *testing.T, log Log, epoch string) {
	ends(t, log, epoch, Position{})
	holds(t, log, epoch, Position{})
	holds(t, log, epoch, Position{5, 5})
	if err := log.Trim(inTime(t), epoch, Position{9, 9}); err != nil {
		t.Fatal(err)
	}
	ends(t, log, epoch, Position{})
}

func testHurry(t *testing.T, log Log, epoch string) {
	for n, hurry := range []bool{false, true, false, true} {
		if hurry {
			log.Hurry(inTime(t))
			log.Hurry(inTime(t))
		}
		add(t, log, epoch, beat(1, uint64(n+1)))
		if log.Hurried() != hurry || log.Hurried() {
			t.Errorf("entry %d: asked %t", n, hurry)
		}
	}
}

func testOrder(t *testing.T, log Log, epoch string) {
	entries := []Entry{beat(3, 1), beat(3, 2), beat(3, 3), beat(10, 1), beat(10, 2), beat(1<<63, 1)}
	add(t, log, epoch, entries...)
	for i := range entries {
		holds(t, log, epoch, entries[i].Position, entries[i+1:]...)
	}
	holds(t, log, epoch, Position{}, entries...)
	holds(t, log, epoch, Position{2, 1 << 40}, entries...)
	holds(t, log, epoch, Position{3, 1 << 40}, entries[3:]...) // between two terms
	ends(t, log, epoch, Position{1 << 63, 1})
}

func testFencing(t *testing.T, log Log, epoch string) {
	refused := func(e Entry) {
		t.Helper()
		if err := log.Append(inTime(t), epoch, e); !errors.Is(err, changefeed.ErrFenced) {
			t.Fatalf("append %s: %v, want ErrFenced", e.Position, err)
		}
	}
	refused(beat(0, 0))
	add(t, log, epoch, beat(7, 5))
	for _, e := range []Entry{beat(7, 5), beat(7, 4), beat(6, 1000), beat(0, 1)} {
		refused(e)
	}
	add(t, log, epoch, beat(9, 1))
	refused(beat(7, 6)) // the follower before, which does not know that it was replaced
	refused(beat(9, 1))
	add(t, log, epoch, beat(9, 2))
	holds(t, log, epoch, Position{}, beat(7, 5), beat(9, 1), beat(9, 2))
	if err := log.Trim(inTime(t), epoch, Position{9, 3}); err != nil {
		t.Fatal(err)
	}
	refused(beat(9, 2)) // a log that was trimmed knows what it had
	ends(t, log, epoch, Position{9, 2})
}

func testBatches(t *testing.T, log Log, epoch string) {
	batch := func(term, from, to uint64) (entries []Entry) {
		for n := from; n <= to; n++ {
			entries = append(entries, beat(term, n))
		}
		return entries
	}
	appends := func(want error, entries []Entry) {
		t.Helper()
		if err := log.Append(inTime(t), epoch, entries...); !errors.Is(err, want) || (want == nil) != (err == nil) {
			t.Fatalf("append %v: %v, want %v", positions(entries), err, want)
		}
	}
	appends(nil, batch(2, 1, 250))
	appends(nil, batch(2, 251, 251))
	holds(t, log, epoch, Position{2, 0}, batch(2, 1, 251)...)
	appends(changefeed.ErrFenced, batch(2, 249, 253)) // again, in doubt how many were there
	ends(t, log, epoch, Position{2, 253})
	holds(t, log, epoch, Position{2, 0}, batch(2, 1, 253)...)
	appends(changefeed.ErrFenced, batch(2, 1, 253))
	appends(nil, batch(5, 1, 3))
	appends(changefeed.ErrFenced, batch(2, 254, 500))
	holds(t, log, epoch, Position{2, 253}, batch(5, 1, 3)...)

	const rivals, each = 4, 200 // entries of one append are not mixed with those of another
	var done sync.WaitGroup
	for rival := range uint64(rivals) {
		done.Go(func() {
			if err := log.Append(inTime(t), epoch, batch(10+rival, 1, each)...); err != nil && !errors.Is(err, changefeed.ErrFenced) {
				t.Error(err)
			}
		})
	}
	done.Wait()
	entries, err := readLog(inTime(t), log, epoch, Position{5, 3}, time.Millisecond)
	if err != nil || len(entries)%each != 0 || len(entries) == 0 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	for i, e := range entries {
		if want := uint64(i%each) + 1; e.Position.N != want || e.Position.Term != entries[i-i%each].Position.Term {
			t.Fatalf("entry %d is %s", i, e.Position)
		}
	}
}

func testBlocking(t *testing.T, log Log, epoch string) {
	type found struct {
		entries []Entry
		err     error
	}
	read := func(ctx context.Context, after Position, wait time.Duration) chan found {
		c := make(chan found, 1)
		go func() {
			entries, err := readLog(ctx, log, epoch, after, wait)
			c <- found{entries, err}
		}()
		return c
	}
	add(t, log, epoch, beat(1, 1))
	waiting := []chan found{read(inTime(t), Position{1, 1}, patient), read(inTime(t), Position{1, 1}, patient)}
	select {
	case f := <-waiting[0]:
		t.Fatalf("came back with nothing to read: %+v", f)
	case <-time.After(50 * time.Millisecond): // both wait
	}
	add(t, log, epoch, beat(1, 2))
	for _, w := range waiting {
		if f := <-w; f.err != nil || !slices.Equal(positions(f.entries), []string{"1-2"}) {
			t.Fatalf("%v, %v", positions(f.entries), f.err)
		}
	}
	began := time.Now()
	if f := <-read(inTime(t), Position{1, 2}, 100*time.Millisecond); f.err != nil || f.entries != nil || time.Since(began) < 90*time.Millisecond {
		t.Fatalf("when wait ends: %+v after %s", f, time.Since(began))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	began = time.Now()
	if f := <-read(ctx, Position{1, 2}, patient); f.err == nil || time.Since(began) > patient/2 {
		t.Fatalf("when ctx ends: %+v after %s", f, time.Since(began))
	}
	add(t, log, "another "+epoch, beat(5, 1)) // and the log goes on
	add(t, log, epoch, beat(1, 3))
	holds(t, log, epoch, Position{1, 2}, beat(1, 3))
}

func testTrim(t *testing.T, log Log, epoch string) {
	trim := func(p Position) {
		t.Helper()
		if err := log.Trim(inTime(t), epoch, p); err != nil {
			t.Fatal(err)
		}
	}
	add(t, log, epoch, beat(1, 1), beat(1, 2), beat(2, 1), beat(2, 2))
	trim(Position{1, 2})
	holds(t, log, epoch, Position{}, beat(1, 2), beat(2, 1), beat(2, 2))
	trim(Position{2, 0})
	holds(t, log, epoch, Position{}, beat(2, 1), beat(2, 2))
	holds(t, log, epoch, Position{2, 1}, beat(2, 2))
	trim(Position{100, 0})
	holds(t, log, epoch, Position{})
	ends(t, log, epoch, Position{2, 2})
	add(t, log, epoch, beat(2, 3))
	holds(t, log, epoch, Position{}, beat(2, 3))
}

func testCheckpoint(t *testing.T, log Log, epoch string) {
	stored := func(of string, want *changefeed.Checkpoint) {
		t.Helper()
		got, err := log.Checkpoint(inTime(t), of)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("of %q: %+v, %v; want %+v", of, got, err, want)
		}
	}
	stored(epoch, nil)
	r := rand.New(rand.NewPCG(3, 4))
	for n := range 3 {
		c := &changefeed.Checkpoint{Epoch: epoch, First: Position{number(r), number(r)}, At: Position{number(r), number(r)}, Last: []changefeed.LastChange{}}
		if n > 0 {
			c.Lists = list.BuiltIn().Lists[:n]
		}
		for range 100 * n {
			c.Last = append(c.Last, changefeed.LastChange{Table: number(r), At: Position{number(r), number(r)}})
		}
		if err := log.SetCheckpoint(inTime(t), c); err != nil {
			t.Fatal(err)
		}
		stored(epoch, c)
	}
	stored("another "+epoch, nil)
}

func testEpochsApart(t *testing.T, log Log, epoch string) {
	old, next := epoch+" old", epoch+" new"
	add(t, log, old, beat(8, 1), beat(8, 2))
	add(t, log, next, beat(3, 1)) // transaction ids may begin again
	holds(t, log, next, Position{}, beat(3, 1))
	turn(t, log, next)
	_ = log.Append(inTime(t), old, beat(8, 3)) // by one who does not know
	_ = log.Trim(inTime(t), old, Position{9, 0})
	add(t, log, next, beat(3, 2))
	holds(t, log, next, Position{}, beat(3, 1), beat(3, 2))
	ends(t, log, next, Position{3, 2})
}

func testEpoch(t *testing.T, log Log, epoch string) {
	turn(t, log, "")
	for i, c := range []struct {
		from, to string
		want     error
		present  string
	}{
		{"", "a", nil, "a"},
		{"", "a", nil, "a"}, // again, in doubt whether it was done
		{"", "b", changefeed.ErrSuperseded, "a"},
		{"b", "c", changefeed.ErrSuperseded, "a"},
		{"a", "a", nil, "a"},
		{"a", "b", nil, "b"},
		{"a", "b", nil, "b"},
		{"a", "c", changefeed.ErrSuperseded, "b"}, // overtaken between reading and setting
		{"", "a", changefeed.ErrSuperseded, "b"},  // takes it for lost
		{"b", "", nil, ""},                        // lost
		{"b", "c", changefeed.ErrSuperseded, ""},
		{"", "b", nil, "b"},
		{"b", epoch + " \"ä\"", nil, epoch + " \"ä\""},
	} {
		if err := log.SetEpoch(inTime(t), c.from, c.to); !errors.Is(err, c.want) || (c.want == nil) != (err == nil) {
			t.Fatalf("%d: %v, want %v", i, err, c.want)
		}
		if got, err := log.Epoch(inTime(t)); err != nil || got != c.present {
			t.Fatalf("%d: epoch %q, %v; want %q", i, got, err, c.present)
		}
	}
}

// turn sets the epoch whatever it was.
func turn(t *testing.T, log Log, to string) {
	t.Helper()
	present, err := log.Epoch(inTime(t))
	if err == nil {
		err = log.SetEpoch(inTime(t), present, to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// testRoundTrip: a reader gets what was appended, to the last bit.
func testRoundTrip(t *testing.T, log Log, epoch string) {
	r := rand.New(rand.NewPCG(1, 2))
	var all []Entry
	for n := range uint64(300) {
		all = append(all, randomEntry(r, Position{3, n + 1}))
	}
	add(t, log, epoch, all...)
	holds(t, log, epoch, Position{}, all...)
}

func randomEntry(r *rand.Rand, at Position) Entry {
	change := func() (c Change) {
		c.XID, c.LSN = number(r), number(r)
		for range r.IntN(4) {
			t := Table{List: []*list.List{nil, listtest.Items, listtest.Contacts}[r.IntN(3)], All: r.IntN(4) == 0}
			if !t.All {
				t.Tenant = []string{"", "a", maxID, "/ \"ä\n"}[r.IntN(4)]
			}
			c.Touched = append(c.Touched, changefeed.Touched{Table: t})
		}
		return c
	}
	e := Entry{Position: at}
	switch r.IntN(3) {
	case 0:
		e.TermStart = &changefeed.TermStart{Previous: Position{number(r), number(r)}}
	case 1:
		c := change()
		c.CommittedAt = int64(number(r))
		for i := range c.Touched {
			for range r.IntN(3) {
				c.Touched[i].Rows = append(c.Touched[i].Rows, randomRow(r))
			}
		}
		e.Change = &c
	default:
		s := Snapshot{Xmin: number(r), Xmax: number(r)}
		for range r.IntN(3) {
			s.Running = append(s.Running, number(r))
		}
		e.Heartbeat = &Heartbeat{LSN: number(r), Snapshot: s.String()}
		if r.IntN(2) == 0 {
			e.Heartbeat.Followed = list.BuiltIn().Lists
		}
		for range r.IntN(3) {
			e.Heartbeat.Unsettled = append(e.Heartbeat.Unsettled, change())
		}
	}
	return e
}

func randomRow(r *rand.Rand) list.Row {
	n := r.IntN(1000)
	switch r.IntN(4) {
	case 0:
		return list.GoneRow(listtest.Key(listtest.ID(n)))
	case 1:
		return listtest.Item(n, "name", listtest.Unsent)
	case 2:
		row := listtest.Contact(n)
		row.ForgetText()
		return row
	}
	return listtest.Item(n, "track_stock", "t", "name", "a\n\"b"[:r.IntN(5)])
}

// number prefers the edges.
func number(r *rand.Rand) uint64 {
	switch r.IntN(4) {
	case 0:
		return uint64(r.IntN(3))
	case 1:
		return ^uint64(r.IntN(3))
	case 2:
		return 1<<53 + uint64(r.IntN(3)) // where a float is no longer exact
	}
	return r.Uint64()
}

// testSuperseded: who follows the epoch that is named has replaced this follower.
func testSuperseded(t *testing.T, log Log, epoch string) {
	turn(t, log, epoch)
	add(t, log, epoch, beat(1, 1))
	turn(t, log, epoch+", the next")
	if err := log.Append(inTime(t), epoch, beat(1, 2)); !errors.Is(err, changefeed.ErrSuperseded) {
		t.Errorf("a heartbeat: %v", err)
	}
	if err := log.Append(inTime(t), epoch+", one after", termStart(5, Position{})); err != nil { // it is named next
		t.Errorf("the start of a term: %v", err)
	}
	add(t, log, epoch+", the next", beat(9, 1))
}

func testCut(t *testing.T, log Log, epoch string) {
	reader, _, err := log.Reader(inTime(t))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var all []Entry
	const readBatch = 1000 // of Redis; Local has no bound
	for n := range uint64(readBatch + 1) {
		all = append(all, beat(1, n+1))
	}
	if err := log.Append(inTime(t), epoch, all...); err != nil {
		t.Fatal(err)
	}
	entries, cut, err := reader.Read(inTime(t), epoch, Position{}, time.Millisecond)
	if err != nil || cut != (len(entries) < len(all)) {
		t.Errorf("%d entries, cut: %t, %v", len(entries), cut, err)
	}
	if entries, cut, err := reader.Read(inTime(t), epoch, Position{1, readBatch}, time.Millisecond); err != nil || len(entries) != 1 || cut {
		t.Errorf("the rest: %d entries, cut: %t, %v", len(entries), cut, err)
	}
}

// readLog is one read by a reader of its own.
func readLog(ctx context.Context, log Log, epoch string, after Position, wait time.Duration) ([]Entry, error) {
	reader, _, err := log.Reader(ctx)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	entries, _, err := reader.Read(ctx, epoch, after, wait)
	return entries, err
}

func TestPositions(t *testing.T) {
	ascending := []Position{{}, {0, 1}, {0, 1<<64 - 1}, {1, 0}, {1, 2}, {1, 1 << 63}, {2, 1}, {1 << 63, 0}, {1<<64 - 1, 1<<64 - 1}}
	for i, p := range ascending {
		for j, q := range ascending {
			if p.Compare(q) != cmp.Compare(i, j) {
				t.Errorf("%s and %s compare as %d", p, q, p.Compare(q))
			}
		}
		if again, err := changefeed.ParsePosition(p.String()); err != nil || again != p {
			t.Errorf("%s was read as %s, %v", p, again, err)
		}
	}
	for _, text := range []string{"", "-", "1", "1-", "-1", "1-1-1", "a-1", "1-b", "18446744073709551616-1", "+1-1", " 1-1", "1_0-1"} {
		if p, err := changefeed.ParsePosition(text); err == nil || p != (Position{}) {
			t.Errorf("%q was read as %s", text, p)
		}
	}
}

func TestSnapshots(t *testing.T) {
	for text, sees := range map[string]string{"5:5:": "0 1 2 3 4", "3:7:3,5": "0 1 2 4 6", "2:6:2,3,4,5": "0 1", "1:9:1": "0 2 3 4 5 6 7 8"} {
		s, err := changefeed.ParseSnapshot(text)
		if err != nil || s.String() != text {
			t.Errorf("%s was read as %s, %v", text, s, err)
		}
		var all []string
		for xid := range uint64(10) {
			if s.Sees(xid) {
				all = append(all, fmt.Sprint(xid))
			}
		}
		if is := strings.Join(all, " "); is != sees {
			t.Errorf("%s sees %s, want %s", text, is, sees)
		}
	}
	for _, text := range []string{"", "1", "1:2", "1:2:3:4", ":2:", "1::", "1:2:,", "1:2:3,", "1:2:x", "-1:2:"} {
		if s, err := changefeed.ParseSnapshot(text); err == nil {
			t.Errorf("%q was read as %s", text, s)
		}
	}
}
