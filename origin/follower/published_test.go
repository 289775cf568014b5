package follower

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

// listedRow is a row of a list.
type listedRow struct {
	list changefeed.List
	id   uuid.UUID
}

// model is a database of few rows, and what the follower publishes of its changes.
type model struct {
	*testing.T
	random    *rand.Rand
	rows      map[listedRow]uint64 // a number that represents the values that order and filter the list
	published *published
	decoder   decoder
	ids       int
	nameless  int // one of this many rows is not named
	same      int
}

func (m *model) list() changefeed.List {
	return changefeed.List{Workspace: number(m.random.IntN(3)), Collection: lists.Collection(m.random.IntN(2))}
}

// write changes one row in the open transaction.
func (m *model) write() {
	r := listedRow{m.list(), number(100 + m.random.IntN(m.ids))}
	to := func(r listedRow, by uint64) { // 0 = deleted
		v := version{row: changefeed.Row{ID: r.id, CreatedAt: int64(by), Flags: lists.Goods}, hash: by}
		if by == 0 {
			v.row = changefeed.Row{ID: r.id, Flags: changefeed.RowGone}
			delete(m.rows, r)
		} else {
			m.rows[r] = by
			v.hash = binary.BigEndian.Uint64(r.list.Workspace[8:])<<16 | uint64(r.list.Collection)<<8 | by
			if m.random.IntN(20) == 0 { // a large value that is not sent
				v.hash = 0
			}
		}
		if m.random.IntN(m.nameless) == 0 {
			m.decoder.add(r.list, nil)
		} else {
			m.decoder.add(r.list, &v)
		}
	}
	by, there := m.rows[r]
	switch n := m.random.IntN(10); {
	case n < 4 && there: // no value that orders or filters lists
		to(r, by)
	case n < 6 && there:
		to(r, 0)
	case n == 6 && there:
		moved := r
		moved.list.Workspace = number(m.random.IntN(3))
		if _, taken := m.rows[moved]; taken {
			break
		}
		to(r, 0)
		to(moved, by)
	default:
		to(r, 1+m.random.Uint64N(2))
	}
}

// commit publishes the open transaction. It checks that each row that is Same is at the
// same position as before the transaction.
func (m *model) commit(before map[listedRow]uint64) {
	m.Helper()
	done := m.decoder.commit(1, 2, time.Time{})
	m.decoder.openTransaction = m.decoder.begin(1, m.decoder.tables)
	if done == nil {
		return
	}
	m.published.name(done)
	for i, list := range done.change.Lists {
		for row := range done.change.RowsOf(i).All() {
			r := listedRow{list, row.ID}
			by, is := m.rows[r]
			if gone := row.Flags&changefeed.RowGone != 0; gone == is {
				m.Fatalf("%+v is named as %+v", r, row)
			}
			if row.Flags&changefeed.RowSame == 0 {
				if is && row.CreatedAt != int64(by) {
					m.Fatalf("%+v is named as %+v, and is at %d", r, row, by)
				}
				continue
			}
			if m.same++; !is || before[r] != by {
				m.Fatalf("%+v is the same: at %d, and was at %d", r, by, before[r])
			}
		}
	}
	if len(m.published.young) > m.published.half || len(m.published.old) > m.published.half || len(m.published.lists) > m.published.maxLists {
		m.Fatalf("%d and %d rows, %d lists", len(m.published.young), len(m.published.old), len(m.published.lists))
	}
}

// A row is Same only if it is where it was in its list before the change, also after rows
// were deleted, moved, inserted again, not named, or forgotten.
func TestARowIsTheSameOnlyWhereItWas(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	same := 0
	for run := range uint64(200) {
		m := &model{T: t, random: rand.New(rand.NewPCG(seed, run)), rows: map[listedRow]uint64{}, decoder: newDecoder()}
		m.published = newPublished(2+m.random.IntN(40), 1+m.random.IntN(6))
		m.ids, m.nameless = 2+m.random.IntN(12), 3+m.random.IntN(40)
		for range 300 {
			before := maps.Clone(m.rows)
			for range 1 + m.random.IntN(3) {
				m.write()
			}
			switch m.random.IntN(60) {
			case 0:
				m.decoder.whole |= 1 << m.random.IntN(2)
			case 1:
				m.decoder.whole = allCollections
			case 2:
				m.decoder.rowsUnknown = true // a streamed one
				m.decoder.named = slices.Repeat([][]version{nil}, len(m.decoder.named))
			case 3: // a purge
				for collection := range lists.Collections {
					m.decoder.add(changefeed.List{Workspace: number(m.random.IntN(3)), Collection: collection}, nil)
				}
			}
			m.commit(before)
		}
		same += m.same
	}
	if same < 1000 {
		t.Errorf("only %d rows are the same", same)
	}
}
