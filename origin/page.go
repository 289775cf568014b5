package origin

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"

	"listedge/internal/lists"
)

// Page is one page of a list as the database had it.
type Page struct {
	// Body is the JSON of the answer up to where the request id goes:
	// {"data":[…],"page":{"hasMore":…,"nextCursor":…}  — without the last brace.
	Body       []byte
	NextCursor string // empty when this is the last page
	Rows       int
	Shown      *Shown // nil = not known

	// For a page from the primary: the statement's pg_current_snapshot(), and the run
	// of the server, which is the time of its start.
	Snapshot, Run string
	// For a page from a standby: the primary's system and timeline, and the LSN up to
	// which the standby had replayed before the statement began.
	Timeline string
	LSN      uint64

	Began time.Time     // when the query was sent, also if it failed; zero = none was sent
	Took  time.Duration // how long the query took
}

// maxPage bounds a page in bytes: a page that reaches it ends before its limit. The first
// row may be larger, so that a walk gets past every row that can be read. The widest row
// that the schema permits is 2 MB of JSON.
const maxPage = 4 << 20

// Shown is the part of a list that a page shows. It begins at the query's position. With
// it one can decide which changes of rows do not change the page.
type Shown struct {
	IDs []uuid.UUID // of the page's rows and of the first row after them, if there is one
	End Position    // directly after that row; not Set = the list ends with the page
}

// showing collects Shown while a page is read.
type showing struct {
	ids     []uuid.UUID
	end     Position
	unknown bool
}

// add adds one of the page's rows. The row has been encoded, so it is well-formed. If its
// created_at has microseconds, which the page's text does not show, the page's extent is
// unknown: PositionAfterRow would be wrong. Only an altered schema has such values.
func (s *showing) add(row [][]byte, sort lists.Order) {
	s.addID(row)
	s.unknown = s.unknown || sort == lists.ByCreatedAt && positionAfter(row, sort).CreatedAt%1000 != 0
}

func (s *showing) addID(row [][]byte) { s.ids = append(s.ids, uuid.UUID(row[0])) }

// endBefore adds the first row after the page. The row has not been encoded, so it is
// checked here.
func (s *showing) endBefore(row [][]byte, sort lists.Order) {
	if len(row[0]) != len(uuid.UUID{}) || len(row[len(row)-1]) != 8 {
		s.unknown = true
		return
	}
	s.addID(row)
	s.end = positionAfter(row, sort)
	s.unknown = s.unknown || sort == lists.ByCreatedAt && (s.end.CreatedAt < lists.MinInstant || s.end.CreatedAt >= lists.EndInstant)
}

// shown returns what the page shows; nil if that is not known.
func (s *showing) shown() *Shown {
	if s.unknown {
		return nil
	}
	return &Shown{IDs: slices.Clone(s.ids), End: s.end}
}

// A page may be joined from the rows of other pages of its list, which are copied without a
// change. The rows are found by the text around them.

// rowStart is the beginning of each row of a page, and occurs nowhere else in it: within a
// JSON string each quotation mark is escaped, so no brace is directly before one.
var rowStart = []byte(`{"id":"`)

// dataEnd follows the rows of a page, and occurs only there, for the same reason.
var dataEnd = []byte(`],"page":{"`)

const pageHead = `{"data":[`

// AppendRows appends the offset of each row in a page's body, and one element more: row i is
// body[starts[i]:starts[i+1]-1], and a comma or the end of the array follows it. (To find
// them takes 1 µs a page. To store them would take 4 bytes a row.)
func AppendRows(starts []uint32, body []byte) []uint32 {
	end := bytes.LastIndex(body, dataEnd)
	if end < len(pageHead) {
		return starts
	}
	for at := len(pageHead); at < end; {
		starts = append(starts, uint32(at))
		next := bytes.Index(body[at+len(rowStart):end], rowStart)
		if next < 0 {
			break
		}
		at += len(rowStart) + next
	}
	return append(starts, uint32(end+1))
}

// PositionAfterRow returns the position directly after a row of a page's body, in a list of
// this order. ok is false if the bytes are not a row.
func PositionAfterRow(row []byte, sort lists.Order) (p Position, ok bool) {
	const id = len(uuid.UUID{})*2 + 4
	name, ok := bytes.CutPrefix(row, rowStart)
	if !ok || len(name) < id {
		return p, false
	}
	var err error
	if p.ID, err = uuid.ParseBytes(name[:id]); err != nil {
		return p, false
	}
	p.Set = true
	if sort == lists.ByName {
		p.Name, ok = cutName(name[id:])
		return p, ok
	}
	// created_at is timestamptz(3): its text has all of it.
	const layout = `"2006-01-02T15:04:05.000Z"`
	if len(row) < len(layout)+1 {
		return p, false
	}
	at, err := time.Parse(layout, string(row[len(row)-len(layout)-1:len(row)-1]))
	p.CreatedAt = at.UnixMicro()
	return p, err == nil
}

// cutName returns lists.NameKey of a row's name. b is the text that follows the row's id.
func cutName(b []byte) (string, bool) {
	b, ok := bytes.CutPrefix(b, []byte(`","name":"`))
	if !ok {
		return "", false
	}
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			if text := b[:i]; bytes.IndexByte(text, '\\') < 0 {
				return lists.NameKey(string(text)), true
			}
			var name string
			err := json.Unmarshal(append(append([]byte{'"'}, b[:i]...), '"'), &name)
			return lists.NameKey(name), err == nil
		}
	}
	return "", false
}

// Join makes the query's page from rows of other pages. Each part is some rows with the
// commas between them. more says that rows follow the page. ok is false if Fetch would make a
// shorter page, or if the parts are not rows.
func (q *Query) Join(parts [][]byte, more bool) (page Page, ok bool) {
	size := len(pageHead) + MaxCursor + 64
	for _, rows := range parts {
		size += len(rows) + 1
	}
	b := append(make([]byte, 0, size), pageHead...)
	for _, rows := range parts {
		if len(b) > len(pageHead) && len(rows) > 0 {
			b = append(b, ',')
		}
		b = append(b, rows...)
	}
	if len(b) > maxPage {
		return Page{}, false
	}
	if more {
		last := b[max(0, bytes.LastIndex(b, rowStart)):]
		next := *q
		if next.After, ok = PositionAfterRow(last, q.Sort); !ok {
			return Page{}, false
		}
		page.NextCursor = string(next.AppendCursor(nil))
	}
	page.Body = appendPageEnd(b, page.NextCursor)
	return page, true
}

// appendPageEnd appends what follows the rows of a page. next is the cursor of the next page;
// empty = this is the last page.
func appendPageEnd(dst []byte, next string) []byte {
	if next == "" {
		return append(dst, `],"page":{"hasMore":false,"nextCursor":null}`...)
	}
	dst = append(dst, `],"page":{"hasMore":true,"nextCursor":"`...)
	return append(append(dst, next...), `"}`...)
}
