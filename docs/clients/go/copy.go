package listedge

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"reflect"
	"sort"
	"strconv"
)

// Row is an item or a contact.
type Row interface {
	Item | Contact
	id() string
}

func (i Item) id() string    { return i.Id }
func (c Contact) id() string { return c.Id }

// Copy is a copy of a list. Round brings it up to date.
//
// Invariant: Pages are the answers of one walk from the first page to the last.
// A page that the service said is unchanged (304) counts as read. So a round
// finds what a walk finds: each row that was active from its beginning to its
// end, once.
//
// A Copy is used by one goroutine at a time.
type Copy[R Row] struct {
	Pages []StoredPage[R] // of the last round that ended; store them as JSON, and a restart needs no new walk
	Limit int             // rows of a request, at most 100; 0 = 100

	client *Client
	path   string
	walk   *walk[R] // a round that has not ended; nil = none
}

// StoredPage is a page as it was read.
type StoredPage[R Row] struct {
	Cursor string `json:"cursor"` // "" = the first page
	ETag   string `json:"etag"`
	Rows   []R    `json:"rows"`
	Next   string `json:"next"`          // the cursor of the next page; "" = this is the last
	Cut    bool   `json:"cut,omitempty"` // it has fewer rows than were asked for, because of their size
}

// Round is what one round, a walk of the whole list, found.
type Round[R Row] struct {
	Changed   []*R     // rows that are new or differ
	Removed   []string // ids of rows that are gone
	Requests  int      // pages that were asked for
	Unchanged int      // of these, answered with 304
}

// NewItems is an empty copy of the items of the key's workspace.
func NewItems(c *Client) *Copy[Item] { return &Copy[Item]{client: c, path: "/v1/items"} }

// NewContacts is an empty copy of the contacts of the key's workspace.
func NewContacts(c *Client) *Copy[Contact] { return &Copy[Contact]{client: c, path: "/v1/contacts"} }

// Rows returns the rows of the copy by id.
func (c *Copy[R]) Rows() map[string]*R { return rowsOf(c.Pages) }

// Round walks the list once and then replaces the copy. An error ends the call and
// not the round: the copy stays as it was, and the next call goes on at the page
// that failed.
func (c *Copy[R]) Round(ctx context.Context) (Round[R], error) {
	if c.walk == nil {
		c.walk = newWalk(c.Pages, cmp.Or(c.Limit, 100))
	}
	w := c.walk
	for more := true; more; more = w.cursor != "" {
		limit, stored := w.next()
		query := url.Values{"limit": {strconv.Itoa(limit)}}
		if w.cursor != "" {
			query.Set("cursor", w.cursor)
		}
		page, etag, err := read[R](ctx, c.client, c.path, query, stored.ETag)
		if err != nil {
			if problem, ok := errors.AsType[*Problem](err); ok && problem.Status == http.StatusBadRequest {
				c.walk = nil // the same request would fail again
			}
			return Round[R]{}, err
		}
		w.found.Requests++
		if page == nil {
			w.found.Unchanged++
			w.add(stored)
			continue
		}
		read := StoredPage[R]{Cursor: w.cursor, ETag: etag, Rows: page.Data, Cut: page.Page.HasMore && len(page.Data) < limit}
		if page.Page.NextCursor != nil {
			read.Next = *page.Page.NextCursor
		}
		w.add(read)
	}
	before, after := rowsOf(c.Pages), rowsOf(w.pages)
	for id, row := range after {
		if old := before[id]; old != row && !reflect.DeepEqual(old, row) { // an unchanged page keeps its rows where they are
			w.found.Changed = append(w.found.Changed, row)
		}
	}
	for id := range before {
		if after[id] == nil {
			w.found.Removed = append(w.found.Removed, id)
		}
	}
	c.Pages, c.walk = w.pages, nil
	return w.found, nil
}

// rowsOf returns the rows of pages by id. A row that moved during the walk may be
// there twice; the page that was read last is right.
func rowsOf[R Row](pages []StoredPage[R]) map[string]*R {
	rows := map[string]*R{}
	for _, page := range pages {
		for i := range page.Rows {
			rows[page.Rows[i].id()] = &page.Rows[i]
		}
	}
	return rows
}

// walk is a round under way. It asks for pages that end where stored pages end:
// `limit` may differ from page to page. So a row that comes or goes changes the
// pages around it, and not each page behind it, and those can be revalidated.
// This decides only what a round costs; what it finds does not depend on it.
type walk[R Row] struct {
	limit  int
	old    []StoredPage[R]
	begins []int          // how many old rows are before each old page, and before the end
	pageAt map[string]int // the old page that begins at a cursor
	rowAt  map[string]int // the place of a row among the old ones, by id

	cursor string // of the next page
	place  int    // how many old rows are before it
	pages  []StoredPage[R]
	found  Round[R]
}

func newWalk[R Row](old []StoredPage[R], limit int) *walk[R] {
	w := &walk[R]{limit: limit, old: old, begins: []int{0}, pageAt: map[string]int{}, rowAt: map[string]int{}}
	for i, page := range old {
		w.pageAt[page.Cursor] = i
		for j, row := range page.Rows {
			w.rowAt[row.id()] = w.begins[i] + j
		}
		w.begins = append(w.begins, w.begins[i]+len(page.Rows))
	}
	return w
}

// next returns how many rows to ask for: up to the furthest end of an old page that
// a request reaches, which joins small pages again. If one old page has just these
// rows, it is returned, too: it may be unchanged.
func (w *walk[R]) next() (limit int, stored StoredPage[R]) {
	i, known := w.pageAt[w.cursor]
	if known {
		w.place = w.begins[i]
	}
	end := sort.SearchInts(w.begins, w.place+1) // of the old page that has the next row
	for end+1 < len(w.begins) && w.begins[end+1] <= w.place+w.limit && !w.old[end-1].Cut {
		end++
	}
	limit, rows := w.limit, 0
	if end < len(w.begins) {
		rows = w.begins[end] - w.place
	}
	if end < len(w.old) { // behind the last page there may be new rows
		limit = min(limit, rows)
	}
	if known && len(w.old[i].Rows) == rows {
		stored = w.old[i]
	}
	return limit, stored
}

// add appends the next page to the walk, and finds its place among the old rows.
func (w *walk[R]) add(page StoredPage[R]) {
	w.pages, w.cursor = append(w.pages, page), page.Next
	for i := len(page.Rows) - 1; i >= 0; i-- {
		if place, known := w.rowAt[page.Rows[i].id()]; known {
			w.place = place + 1
			break
		}
	}
}
