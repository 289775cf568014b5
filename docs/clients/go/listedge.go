// Package listedge keeps a copy of a list of a listedge service. It has no
// dependency: copy the folder into your module. ../README.md says how to use it.
package listedge

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Client sends requests to a service.
type Client struct {
	URL     string        // of the service, such as https://listedge.example.com
	Key     string        // an API key, best one of its own
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

// State is how far a copy is. The zero State is that of an empty one.
type State struct {
	Cursor string `json:"cursor"` // of the next request
	Mark   int64  `json:"mark"`   // of the rows that the last full round has shown
}

// Page is a change of the copy.
type Page[R any] struct {
	Rows  []R      // to be stored under their ids, each with State.Mark
	Gone  []string // ids of rows to be deleted
	Sweep bool     // then delete all rows that have another mark: a full round has ended without them
	State State    // to be stored
}

// Store is where a copy is kept.
type Store[R any] interface {
	Load(context.Context) (State, error)
	Apply(context.Context, Page[R]) error // all of the page in one transaction
}

// Sync brings a copy up to date. path is that of the list and may have filters: "/v1/items?type=goods". After an error
// the next call goes on at the page that failed.
func Sync[R any](ctx context.Context, c *Client, path string, store Store[R]) error {
	state, err := store.Load(ctx)
	if err != nil {
		return err
	}
	for restarted := false; ; {
		a, err := read[R](ctx, c, path, cmp.Or(state.Cursor, "changes"))
		if problem, ok := errors.AsType[*Problem](err); ok && problem.Status == http.StatusBadRequest && state.Cursor != "" && !restarted {
			state.Cursor, restarted = "", true // the cursor is of another list, or of a newer service
			continue
		}
		if err != nil {
			return err
		}
		if a.begins {
			state.Mark++
		}
		state.Cursor, a.State.Mark = a.State.Cursor, state.Mark
		if err := store.Apply(ctx, a.Page); err != nil || a.ended {
			return err
		}
	}
}

// Memory is a Store in memory. Stored as JSON it survives a restart.
type Memory[R any] struct {
	State State                `json:"state"`
	Rows  map[string]Marked[R] `json:"rows"` // by id

	id func(R) string
}

// Marked is a row and its mark.
type Marked[R any] struct {
	Row  R     `json:"row"`
	Mark int64 `json:"mark"`
}

// NewMemory is an empty copy of rows with such ids.
func NewMemory[R any](id func(R) string) *Memory[R] {
	return &Memory[R]{Rows: map[string]Marked[R]{}, id: id}
}

// Load returns how far the copy is.
func (m *Memory[R]) Load(context.Context) (State, error) { return m.State, nil }

// Apply changes the copy.
func (m *Memory[R]) Apply(_ context.Context, page Page[R]) error {
	for _, row := range page.Rows {
		m.Rows[m.id(row)] = Marked[R]{row, page.State.Mark}
	}
	for _, id := range page.Gone {
		delete(m.Rows, id)
	}
	if page.Sweep {
		maps.DeleteFunc(m.Rows, func(_ string, row Marked[R]) bool { return row.Mark != page.State.Mark })
	}
	m.State = page.State
	return nil
}

// answer is a page as it came. The cursor of its State is that of the next page or, if the round has ended, of the next
// round.
type answer[R any] struct {
	Page[R]
	begins, ended bool // a full round begins; the round has ended
}

var defaultHTTP = &http.Client{Timeout: 30 * time.Second}

// read requests a page until it is there. It waits as long as Retry-After says, and for
// up to 8 s after a broken connection. It waits up to half as long again, so that many
// clients do not come back at once.
func read[R any](ctx context.Context, c *Client, path, cursor string) (*answer[R], error) {
	patience := time.Now().Add(cmp.Or(c.MaxWait, time.Minute))
	for wait := 500 * time.Millisecond; ; wait = min(2*wait, 8*time.Second) {
		page, err := try[R](ctx, c, path, cursor)
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
func try[R any](ctx context.Context, c *Client, path, cursor string) (*answer[R], error) {
	address, err := url.Parse(strings.TrimRight(c.URL, "/") + path)
	if err != nil || address.Scheme != "https" && address.Scheme != "http" || address.Host == "" {
		return nil, &Problem{Message: fmt.Sprintf("%q is not the URL of a service, such as https://listedge.example.com", c.URL)}
	}
	query := address.Query()
	query.Set("limit", cmp.Or(query.Get("limit"), "100"))
	query.Set("cursor", cursor)
	address.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("X-API-Key", c.Key)
	client := *cmp.Or(c.HTTP, defaultHTTP)
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	response, err := client.Do(request)
	if err != nil {
		return nil, wrongAddress(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, problemOf(response, body)
	}
	var said struct {
		Data []R
		Page struct{ NextCursor string }
	}
	if err := json.Unmarshal(body, &said); err != nil || said.Data == nil {
		return nil, &Problem{Status: response.StatusCode, Message: "the answer is not a page of listedge; check the URL"}
	}
	covers, err1 := texts(response.Header, "List-Covers")
	gone, err2 := texts(response.Header, "List-Gone")
	next := cmp.Or(said.Page.NextCursor, changesLink(response.Header))
	has := func(name string) bool {
		return slices.ContainsFunc(covers, func(member string) bool { return member == name || strings.HasPrefix(member, name+"=") })
	}
	if errors.Join(err1, err2) != nil || len(covers) == 0 || next == "" || has("gone") && gone == nil {
		return nil, &Problem{Status: response.StatusCode,
			Message: "List-Covers, List-Gone or Link is missing or damaged; proxies in front of the service have to let these headers through"}
	}
	return &answer[R]{Page[R]{said.Data, gone, !has("none") && !has("through"), State{Cursor: next}},
		!has("none") && !has("after"), said.Page.NextCursor == ""}, nil
}

var link = regexp.MustCompile(`<([^>]*)>; *rel="https://listedge\.dev/rel/changes"`)

// changesLink returns the cursor of the next round; "" = there is none.
func changesLink(header http.Header) string {
	if found := link.FindStringSubmatch(strings.Join(header.Values("Link"), ", ")); found != nil {
		if target, err := url.Parse(found[1]); err == nil {
			return target.Query().Get("cursor")
		}
	}
	return ""
}

// A member of a list or dictionary of RFC 9651, as far as the service uses them.
const (
	text   = `%"[^"]*"|"(?:[^"\\]|\\["\\])*"`
	member = `(?:[a-z]+=)?(?:` + text + `)|[a-z]+`
)

var (
	memberPattern  = regexp.MustCompile(member)
	membersPattern = regexp.MustCompile(`^(?:` + member + `)(?:[ \t]*,[ \t]*(?:` + member + `))*$`)
	unescape       = strings.NewReplacer(`\"`, `"`, `\\`, `\`)
)

// texts returns the members of a header: Strings and Display Strings decoded, others as they are.
func texts(header http.Header, name string) (found []string, err error) {
	line := strings.Join(header.Values(name), ", ")
	if line != "" && !membersPattern.MatchString(line) {
		return nil, errors.New(name)
	}
	for _, m := range memberPattern.FindAllString(line, -1) {
		switch m[0] {
		case '%':
			m, err = url.PathUnescape(m[2 : len(m)-1])
		case '"':
			m = unescape.Replace(m[1 : len(m)-1])
		}
		if err != nil {
			return nil, err
		}
		found = append(found, m)
	}
	return found, nil
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
