package edge

import (
	"errors"

	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/internal/list"
	"listedge/internal/page"
)

// A client that keeps a copy of a list asks in rounds what has changed, and each answer is new: it has no ETag, and no
// cache between may store it. List-Covers and List-Gone (both RFC 9651) say what the client may remove from its copy.

// relChanges is the relation of the link to the next round.
const relChanges = "https://listedge.dev/rel/changes"

// parseTracking reads the cursor of a client that tracks the list. See parseCursor.
func (r *request) parseTracking(text []byte, scoped bool) (why string) {
	r.tracks = true
	switch {
	case !r.List.Tracks():
		return "is for lists whose default order is by an instant, newest first, and whose rows show their keys; this list has no changes to follow"
	case r.Search != "":
		return "follows the changes of a list, and a search has none; leave search out"
	case r.Order != 0:
		return "follows the changes of a list in its default order; leave sort out"
	}
	var err error
	r.from, err = r.ParseTracking(text)
	switch {
	case err == nil, errors.Is(err, page.ErrCursorForeign) && !scoped:
		return ""
	case errors.Is(err, page.ErrCursorForeign):
		return "belongs to another workspace, list or filter; use the parameters and the key that it came with, or begin again with changes"
	}
	return "is malformed; use it unchanged, or begin again with changes"
}

// findTracked makes x.tracked for a client that tracks the list, and says where that was found: a result without an entry. It
// reads nothing and waits for nothing where Cache-Control asks for that; it is then called before the limit, since a 504 costs
// nothing.
func (x *exchange) findTracked(asked *request) (cache.Result, *failure) {
	t, err := x.server.Cache.Track(&asked.Query, asked.from, asked.control, x.caller.client.usage.Queried)
	x.tracked = &t
	found := cache.Result{Source: t.Source, Age: t.Age, Times: &cache.Times{Query: t.Query}}
	if err != nil {
		return found, lookUpFailed(&asked.Query, err)
	}
	return found, nil
}

// track answers a client that tracks the list. What was found before the request waited for its limit may be old now.
func (x *exchange) track(asked *request) *failure {
	if x.tracked == nil || x.grant.waited() {
		var f *failure
		x.result, f = x.findTracked(asked)
		x.endPhase(phaseForward)
		if f != nil {
			return f
		}
	}
	x.server.Metrics.LookedUp(tierOf(&x.result), false)
	x.server.Metrics.Tracked(x.tracked)
	x.conn.response.writeTracked(x, &asked.Query)
	return nil
}

// writeTracked makes the response of x.tracked.
func (r *response) writeTracked(x *exchange, q *page.Query) {
	t, next, rel := x.tracked, string(q.AppendTracking(nil, &x.tracked.Next)), "next"
	if t.Ended {
		rel = relChanges
	}
	r.start(fasthttp.StatusOK)
	h := &r.lines
	h.str("Cache-Control", "private, no-store")
	h.found(&x.result)
	h.begin("List-Covers")
	h.covers(q.List, t.Covers, len(t.Gone) > 0)
	h.end()
	for i, key := range t.Gone {
		if i == 0 {
			h.begin("List-Gone")
		} else {
			h.put(", ")
		}
		*h = page.AppendHeaderText(*h, key)
	}
	if len(t.Gone) > 0 {
		h.end()
	}
	h.begin("Link")
	h.link(q, next, rel)
	h.end()
	h.limits(x.caller.client, &x.grant)
	body := trackedBody(t, next, x.id)
	if acceptsGzip(x.headers.encoding) {
		zipped := fasthttp.AppendGzipBytesLevel(nil, body, fasthttp.CompressBestSpeed)
		if len(zipped) < len(body) {
			h.str("Content-Encoding", "gzip")
			body = zipped
		}
	}
	r.setBody(body)
}

// trackedBody returns the body of a page of changes. next is the cursor of the page behind it.
func trackedBody(t *cache.Tracked, next string, id []byte) []byte {
	b := []byte(page.BodyStart)
	for i, row := range t.Rows {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, row.Text()...)
	}
	if t.Ended {
		b = append(b, page.BodyEnd...)
	} else {
		b = append(append(append(b, page.BodyNext...), next...), page.BodyNextEnd...)
	}
	return appendRequestID(b, id)
}

// covers renders the dictionary of List-Covers. It says whether there is a List-Gone: a client that finds none then knows that
// it was lost on the way, and does not keep rows that are gone.
func (h *header) covers(l *list.List, c cache.Covers, gone bool) {
	switch {
	case c.None && gone:
		h.put("none, gone")
	case c.None:
		h.put("none")
	case c.After == "" && c.Through == "":
		h.put("all")
	}
	if c.After != "" {
		*h = page.AppendHeaderText(*h.put("after="), l.TrackingText(c.After))
	}
	if c.After != "" && c.Through != "" {
		h.put(", ")
	}
	if c.Through != "" {
		*h = page.AppendHeaderText(*h.put("through="), l.TrackingText(c.Through))
	}
}
