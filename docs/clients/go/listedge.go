// Package listedge keeps a copy of a workspace's items or contacts in step with
// a listedge service. It has no dependency: copy the folder into your module.
// ../README.md says how to use it.
package listedge

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"time"
)

// Client sends requests to a service.
type Client struct {
	URL     string        // of the service, such as https://listedge.example.com
	Key     string        // an API key, best one of its own: see ../README.md
	MaxWait time.Duration // how long one page is tried for, waits included; 0 = a minute
	HTTP    *http.Client  // nil = one that gives each try 30 seconds
}

// Problem is an error that waiting does not mend, or that would take longer than
// MaxWait: the service answered it, or the URL is wrong.
type Problem struct {
	Status     int    // 0 = there was no answer
	Code       string // such as "FORBIDDEN"; "" if the service did not answer
	Message    string
	Details    map[string]string // by parameter
	RequestID  string            // to be quoted in a report
	RetryAfter time.Duration     // 0 = none
}

func (p *Problem) Error() string {
	if p.Status == 0 {
		return p.Message
	}
	return fmt.Sprintf("%d %s: %s", p.Status, cmp.Or(p.Code, "no answer of listedge"), p.Message)
}

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
		page, err := c.read(ctx, w.cursor, limit, stored.ETag)
		if err != nil {
			if problem, ok := errors.AsType[*Problem](err); ok && problem.Status == http.StatusBadRequest {
				c.walk = nil // the same request would fail again
			}
			return Round[R]{}, err
		}
		w.found.Requests++
		if page == nil {
			w.found.Unchanged++
			page = &stored
		}
		w.add(*page)
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

var defaultHTTP = &http.Client{Timeout: 30 * time.Second}

// read requests a page until it is there. It waits as long as Retry-After says, and for
// up to 8 s after a broken connection. It waits up to half as long again, so that many
// clients do not come back at once. If the page still has the ETag, it returns none.
func (c *Copy[R]) read(ctx context.Context, cursor string, limit int, etag string) (*StoredPage[R], error) {
	patience := time.Now().Add(cmp.Or(c.client.MaxWait, time.Minute))
	for wait := 500 * time.Millisecond; ; wait = min(2*wait, 8*time.Second) {
		page, err := c.try(ctx, cursor, limit, etag)
		problem, answered := errors.AsType[*Problem](err)
		switch {
		case err == nil || ctx.Err() != nil:
			return page, err
		case !answered: // the connection broke: the same request can be sent again
		case problem.Status < 500 && problem.Status != http.StatusTooManyRequests && problem.Status != http.StatusRequestTimeout:
			return nil, err
		}
		pause := wait
		if answered && problem.RetryAfter > 0 {
			pause = problem.RetryAfter
		}
		pause += rand.N(pause / 2)
		if time.Now().Add(pause).After(patience) {
			return nil, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// try sends one request. net/http asks for gzip, and decompresses it. It follows no
// redirect, because net/http would send the key wherever that leads.
func (c *Copy[R]) try(ctx context.Context, cursor string, limit int, etag string) (*StoredPage[R], error) {
	address, err := url.Parse(strings.TrimRight(c.client.URL, "/") + c.path)
	if err != nil || address.Scheme != "https" && address.Scheme != "http" || address.Host == "" {
		return nil, &Problem{Message: fmt.Sprintf("%q is not the URL of a service, such as https://listedge.example.com", c.client.URL)}
	}
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	if cursor != "" {
		query.Set("cursor", cursor)
	}
	address.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("X-API-Key", c.client.Key)
	if etag != "" {
		request.Header.Set("If-None-Match", etag)
	}
	client := *cmp.Or(c.client.HTTP, defaultHTTP)
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	response, err := client.Do(request)
	if err != nil {
		return nil, wrongAddress(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", c.path, err)
	case response.StatusCode == http.StatusNotModified:
		return nil, nil
	case response.StatusCode != http.StatusOK:
		return nil, problemOf(response, body)
	}
	var said struct {
		Data []R
		Page struct {
			HasMore    bool
			NextCursor string
		}
	}
	if err := json.Unmarshal(body, &said); err != nil || said.Data == nil {
		return nil, &Problem{Status: response.StatusCode, Message: "the answer is not a page of listedge; check the URL"}
	}
	return &StoredPage[R]{Cursor: cursor, ETag: response.Header.Get("ETag"), Rows: said.Data,
		Next: said.Page.NextCursor, Cut: said.Page.HasMore && len(said.Data) < limit}, nil
}

// wrongAddress makes a Problem of a request's error if there is no such host, or if it has
// the certificate of another.
func wrongAddress(err error) error {
	var unknown *net.DNSError
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &unknown) && unknown.IsNotFound || errors.As(err, &certificate) {
		return &Problem{Message: err.Error()}
	}
	return err
}

func problemOf(response *http.Response, body []byte) *Problem {
	p := &Problem{Status: response.StatusCode, Message: http.StatusText(response.StatusCode)}
	if to := response.Header.Get("Location"); to != "" {
		p.Message += " to " + to + ", which is not followed; check the URL"
	}
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil {
		p.RetryAfter = time.Duration(seconds) * time.Second
	}
	var said struct {
		Error struct {
			Code, Message string
			Details       map[string]string
		}
		RequestID string
	}
	if json.Unmarshal(body, &said) == nil && said.Error.Code != "" { // else another server's answer
		p.Code, p.Message, p.Details, p.RequestID = said.Error.Code, said.Error.Message, said.Error.Details, said.RequestID
	}
	return p
}
