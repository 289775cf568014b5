package origin

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/google/uuid"

	"listedge/internal/lists"
)

// bodyOf is the page that read makes of the rows, of which there is one more.
func bodyOf(q *Query, rows []sample, more bool) Page {
	b := []byte(pageHead)
	for i, row := range rows {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, row.json...)
	}
	var p Page
	if more {
		next := *q
		next.After = positionAfter(rows[len(rows)-1].sent, q.Sort)
		p.NextCursor = string(next.AppendCursor(nil))
	}
	p.Body = appendPageEnd(b, p.NextCursor)
	return p
}

// A page that is joined from parts of others is, byte by byte, the one that is read.
func TestAJoinedPageIsTheOneThatIsRead(t *testing.T) {
	random := rand.New(rand.NewPCG(31, 32))
	for range 2000 {
		q := Query{Collection: lists.Collection(random.IntN(2)), Sort: lists.Order(random.IntN(2)), Search: "s", Workspace: uuid.New()}
		rows := make([]sample, 1+random.IntN(20))
		for i := range rows {
			rows[i] = randomRow(random, q.Collection.Listed())
		}
		from := random.IntN(len(rows))
		to := from + 1 + random.IntN(len(rows)-from)
		more := random.IntN(2) == 0
		want := bodyOf(&q, rows[from:to], more)

		var parts [][]byte
		for at := from; at < to; {
			n := 1 + random.IntN(to-at)
			before, behind := random.IntN(at+1), at+n+random.IntN(len(rows)-at-n+1)
			stored := bodyOf(&q, rows[before:behind], random.IntN(2) == 0).Body
			starts := AppendRows(nil, stored)
			if len(starts) != behind-before+1 {
				t.Fatalf("%d starts of %d rows: %s", len(starts), behind-before, stored)
			}
			for i := range behind - before {
				row, was := stored[starts[i]:starts[i+1]-1], rows[before+i]
				if !bytes.Equal(row, was.json) {
					t.Fatalf("%s\ninstead of\n%s", row, was.json)
				}
				if p, ok := PositionAfterRow(row, q.Sort); !ok || p != positionAfter(was.sent, q.Sort) {
					t.Fatalf("%+v (%t) instead of %+v: %s", p, ok, positionAfter(was.sent, q.Sort), row)
				}
			}
			parts = append(parts, stored[starts[at-before]:starts[at-before+n]-1])
			at += n
		}
		got, ok := q.Join(parts, more)
		if !ok || !bytes.Equal(got.Body, want.Body) || got.NextCursor != want.NextCursor {
			t.Fatalf("%t\n%s\ninstead of\n%s", ok, got.Body, want.Body)
		}
	}
}

func TestAnEmptyPageHasNoRowsAndIsJoinedOfNone(t *testing.T) {
	q := Query{}
	empty := bodyOf(&q, nil, false)
	if starts := AppendRows(nil, empty.Body); len(starts) != 1 {
		t.Errorf("%d", starts)
	}
	if page, ok := q.Join([][]byte{nil}, false); !ok || !bytes.Equal(page.Body, empty.Body) {
		t.Errorf("%t %s", ok, page.Body)
	}
	if starts := AppendRows(nil, []byte("another body")); len(starts) != 0 {
		t.Errorf("%d", starts)
	}
}

// A page ends early when its rows are large. Such a page is read.
func TestALargePageIsNotJoined(t *testing.T) {
	random := rand.New(rand.NewPCG(33, 34))
	q := Query{}
	row := randomRow(random, lists.Items.Listed()).json
	for _, c := range []struct {
		size int
		ok   bool
	}{{maxPage - len(pageHead) - len(row) - 1, true}, {maxPage - len(pageHead) - len(row), false}} {
		if _, ok := q.Join([][]byte{bytes.Repeat([]byte{' '}, c.size), row}, true); ok != c.ok {
			t.Errorf("%d bytes: %t", c.size, ok)
		}
	}
}

// The text of a row has milliseconds: where there is more, nothing is joined by it.
func TestAPageWithMicrosecondsIsNotJoined(t *testing.T) {
	row := randomRow(rand.New(rand.NewPCG(37, 38)), lists.Items.Listed()).sent
	created := row[len(row)-1]
	at := binary.BigEndian.Uint64(created)
	for _, c := range []struct {
		more uint64 // microseconds
		sort lists.Order
		ok   bool
	}{{0, lists.ByCreatedAt, true}, {1, lists.ByCreatedAt, false}, {1, lists.ByName, true}} {
		binary.BigEndian.PutUint64(created, at+c.more)
		var s showing
		s.add(row, c.sort)
		s.endBefore(row, c.sort)
		if ok := s.shown() != nil; ok != c.ok {
			t.Errorf("%d µs, order %d: %t", c.more, c.sort, ok)
		}
	}
}

func TestWhatIsNoRowHasNoPosition(t *testing.T) {
	random := rand.New(rand.NewPCG(35, 36))
	row := randomRow(random, lists.Contacts.Listed()).json
	for _, sort := range []lists.Order{lists.ByCreatedAt, lists.ByName} {
		for n := range len(row) {
			if p, ok := PositionAfterRow(row[:n], sort); ok && sort == lists.ByCreatedAt {
				t.Errorf("%+v of %s", p, row[:n])
			}
		}
		for _, text := range []string{"", "{}", `{"id":"`, `{"id":"` + uuid.NewString(), `{"id":"` + uuid.NewString() + `","name":"x`, `{"id":"x` + uuid.NewString()[1:] + `","name":"x"}`} {
			if p, ok := PositionAfterRow([]byte(text), sort); ok {
				t.Errorf("%+v of %q", p, text)
			}
		}
	}
}
