package changefeed

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"listedge/internal/list"
)

// codec is the form of entries in Redis: entryVersion, a wireEntry in JSON, and after a line feed the rows of
// each table of its change, by list.AppendRows.
//
// Nodes may have different descriptions while a fleet changes its own. So a list is written by its table
// and by its digest, and the writer names every list that it has of a table which changed. A reader
// applies the rows of lists that it has in the same form. Of its other lists of that table, any row may have
// changed. What it has no list of is nothing to it.
type codec struct {
	lists  *list.Set
	byID   map[listID]*list.List
	byName map[list.Digest][]*list.List // by TableID
}

// entryVersion begins an entry. A form that differs in anything has another version.
const entryVersion = '3'

// listID is a list in the log: its table and its digest.
type listID struct{ table, digest list.Digest }

func newCodec(lists *list.Set) codec {
	c := codec{lists, map[listID]*list.List{}, map[list.Digest][]*list.List{}}
	for _, l := range lists.Lists {
		c.byID[listID{l.TableID, l.Digest}] = l
		c.byName[l.TableID] = append(c.byName[l.TableID], l)
	}
	return c
}

// The forms in JSON: those of the entries themselves, but for lists and tables. Tables are texts: see appendTable.
type (
	wireEntry struct {
		TermStart *TermStart     `json:"t,omitempty"`
		Change    *wireChange    `json:"c,omitempty"`
		Heartbeat *wireHeartbeat `json:"h,omitempty"`
	}
	wireChange struct {
		Change
		Touched []string `json:"p,omitempty"`
	}
	wireHeartbeat struct {
		Heartbeat
		Followed  []byte       `json:"d,omitempty"` // TableIDs
		Unsettled []wireChange `json:"u,omitempty"`
	}
)

// encode returns the form of an entry.
func (c *codec) encode(e *Entry) ([]byte, error) {
	w := wireEntry{TermStart: e.TermStart}
	switch h := e.Heartbeat; {
	case e.Change != nil:
		change := wireChangeOf(e.Change)
		w.Change = &change
	case h != nil:
		w.Heartbeat = &wireHeartbeat{Heartbeat: *h, Followed: tableIDs(h.Followed)}
		for i := range h.Unsettled {
			w.Heartbeat.Unsettled = append(w.Heartbeat.Unsettled, wireChangeOf(&h.Unsettled[i]))
		}
	}
	body, err := json.Marshal(w)
	if err != nil {
		return nil, fmt.Errorf("encode entry %s: %w", e.Position, err)
	}
	body = append([]byte{entryVersion}, body...)
	if e.Change != nil {
		body = append(body, '\n')
		for _, t := range e.Change.Touched {
			body = list.AppendRows(body, t.Rows)
		}
	}
	return body, nil
}

// tableIDs returns the TableIDs of the lists, each once.
func tableIDs(lists []*list.List) (ids []byte) {
	var seen []list.Digest
	for _, l := range lists {
		if !slices.Contains(seen, l.TableID) {
			seen, ids = append(seen, l.TableID), append(ids, l.TableID[:]...)
		}
	}
	return ids
}

func wireChangeOf(c *Change) wireChange {
	w := wireChange{Change: *c}
	for _, t := range c.Touched {
		w.Touched = append(w.Touched, string(appendTable(nil, t.Table)))
	}
	return w
}

// tableIDSize is the length of a listID in base64.
var tableIDSize = base64.RawStdEncoding.EncodedLen(2 * len(list.Digest{}))

// appendTable appends the text of a table: its listID in base64 if it is of a list, and, unless it is that of all
// tenants, a slash and the tenant.
func appendTable(dst []byte, t Table) []byte {
	if t.List != nil {
		id := append(t.List.TableID[:], t.List.Digest[:]...)
		dst = base64.RawStdEncoding.AppendEncode(dst, id)
	}
	if !t.All {
		dst = append(append(dst, '/'), t.Tenant...)
	}
	return dst
}

// wireTable is a table as the log has it. A reader may have no such list.
type wireTable struct {
	of     listID // zero = the keys
	tenant string
	all    bool
}

func parseTable(text string) (t wireTable, ok bool) {
	if text != "" && text[0] != '/' {
		if len(text) < tableIDSize {
			return t, false
		}
		id, err := base64.RawStdEncoding.DecodeString(text[:tableIDSize])
		if err != nil {
			return t, false
		}
		copy(t.of.table[:], id)
		copy(t.of.digest[:], id[len(t.of.table):])
		text = text[tableIDSize:]
	}
	if text == "" {
		t.all = true
		return t, true
	}
	t.tenant = text[1:]
	return t, text[0] == '/'
}

// decode reads what encode wrote. If it cannot, the entry is Undecodable.
func (c *codec) decode(body string) (e Entry) {
	head, tail, _ := strings.Cut(body, "\n")
	var w wireEntry
	if head == "" || head[0] != entryVersion || json.Unmarshal([]byte(head[1:]), &w) != nil {
		return Entry{}
	}
	e.TermStart = w.TermStart
	ok := true
	if w.Change != nil {
		e.Change, ok = c.change(w.Change, []byte(tail), true)
	}
	h := w.Heartbeat
	if h != nil && ok {
		e.Heartbeat = &h.Heartbeat
		e.Heartbeat.Followed = c.followed(h.Followed)
		for i := 0; ok && i < len(h.Unsettled); i++ {
			var unsettled *Change
			unsettled, ok = c.change(&h.Unsettled[i], nil, false)
			if ok {
				e.Heartbeat.Unsettled = append(e.Heartbeat.Unsettled, *unsettled)
			}
		}
	}
	if !ok {
		return Entry{}
	}
	return e
}

// followed returns the reader's lists of the tables with these IDs.
func (c *codec) followed(ids []byte) (lists []*list.List) {
	size := len(list.Digest{})
	for ; len(ids) >= size; ids = ids[size:] {
		lists = append(lists, c.byName[list.Digest(ids[:size])]...)
	}
	return lists
}

// change returns a change as the reader's lists see it. The rows of its tables follow one another in rows, if
// it has any.
func (c *codec) change(w *wireChange, rows []byte, named bool) (change *Change, ok bool) {
	change = &w.Change
	var others []list.Digest // tables of which the writer has a list that the reader has not
	for _, text := range w.Touched {
		of, ok := parseTable(text)
		if !ok {
			return nil, false
		}
		t := Touched{Table: Table{List: c.byID[of.of], Tenant: of.tenant, All: of.all}}
		if named {
			t.Rows, rows, ok = list.ParseRows(rows)
			if !ok {
				return nil, false
			}
		}
		if t.List == nil && of.of != (listID{}) {
			others = append(others, of.of.table)
			continue
		}
		change.Touched = append(change.Touched, t)
	}
	change.Touched = append(change.Touched, c.unnamed(change.Touched, others)...)
	return change, len(rows) == 0
}

// unnamed returns the reader's lists of tables that changed, as far as the change does not name them.
func (c *codec) unnamed(touched []Touched, others []list.Digest) (all []Touched) {
	if len(others) == 0 && len(c.byID) == len(c.byName) { // no table has two lists, and none is unknown
		return nil
	}
	tables := others
	for _, t := range touched {
		if t.List != nil {
			tables = append(tables, t.List.TableID)
		}
	}
	for _, l := range c.lists.Lists {
		if slices.Contains(tables, l.TableID) && !slices.ContainsFunc(touched, func(t Touched) bool { return t.List == l }) {
			all = append(all, AllRowsOf(l))
		}
	}
	return all
}
