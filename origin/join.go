package origin

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// A page may be joined from the rows of other pages of its list: they are copied, as
// they are.

// rowStart begins each row of a page and is nowhere else in it: within a JSON string
// a quotation mark is escaped, so none follows a brace there.
var rowStart = []byte(`{"id":"`)

// dataEnd ends the rows of a page, and is nowhere else in it for the same reason.
var dataEnd = []byte(`],"page":{"`)

const pageHead = `{"data":[`

// AppendRows appends where each row begins in a page's body, and one element more:
// row i is body[starts[i]:starts[i+1]-1], with a comma or the array's end behind it.
// (Finding them takes 1 µs a page. Storing them would take 4 bytes a row.)
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

// PositionAfterRow is the position right behind a row of a page's body in a list of
// this order. ok is false if it is not a row.
func PositionAfterRow(row []byte, sort Sort) (p Position, ok bool) {
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
	if sort == ByName {
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

// cutName returns the ordering part of a row's name, which is in the text behind its id.
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
				return nameKey(string(text)), true
			}
			var name string
			err := json.Unmarshal(append(append([]byte{'"'}, b[:i]...), '"'), &name)
			return nameKey(name), err == nil
		}
	}
	return "", false
}

// Join makes the query's page of rows: each part is rows of a page with the commas
// between them. more says that there are rows behind the page. ok is false if Fetch
// would make a shorter page, or the parts are not rows.
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

// appendPageEnd appends what follows the rows of a page; next is the next page's
// cursor, empty on the last page.
func appendPageEnd(dst []byte, next string) []byte {
	if next == "" {
		return append(dst, `],"page":{"hasMore":false,"nextCursor":null}`...)
	}
	dst = append(dst, `],"page":{"hasMore":true,"nextCursor":"`...)
	return append(append(dst, next...), `"}`...)
}
