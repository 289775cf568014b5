package edge

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/internal/list"
	"listedge/internal/page"
)

// requestHeaders are the headers of a request that this service reads, one value per
// line, as they were sent. They are valid as long as the request. They are read in one
// pass over all headers, which costs as much as one PeekAll of fasthttp.
type requestHeaders struct {
	key, id, match, noneMatch, encoding, control, forwarded, traceParent, traceState [][]byte

	count       int  // how many headers the request has
	expands     bool // there is a header for which fasthttp may allocate more memory than its length
	spaceInName bool // a header's name has a space, which fasthttp allows
	isForwarded bool // X-Forwarded-For or Forwarded is present
}

func (r *requestHeaders) read(h *fasthttp.RequestHeader) {
	*r = requestHeaders{key: r.key[:0], id: r.id[:0], match: r.match[:0], noneMatch: r.noneMatch[:0], encoding: r.encoding[:0],
		control: r.control[:0], forwarded: r.forwarded[:0], traceParent: r.traceParent[:0], traceState: r.traceState[:0]}
	for name, value := range h.All() {
		r.count++
		switch string(name) { // as fasthttp normalises them
		case "X-Api-Key":
			r.key = append(r.key, value)
		case "X-Request-Id":
			r.id = append(r.id, value)
		case "If-Match":
			r.match = append(r.match, value)
		case "If-None-Match":
			r.noneMatch = append(r.noneMatch, value)
		case "Accept-Encoding":
			r.encoding = append(r.encoding, value)
		case "Cache-Control":
			r.control = append(r.control, value)
		case "X-Forwarded-For":
			r.forwarded = append(r.forwarded, value)
			r.isForwarded = true
		case "Forwarded": // its value is not read
			r.isForwarded = true
		case "Traceparent":
			r.traceParent = append(r.traceParent, value)
		case "Tracestate":
			r.traceState = append(r.traceState, value)
		case "Cookie", "Trailer":
			r.expands = true
		default:
			r.spaceInName = r.spaceInName || bytes.IndexByte(name, ' ') >= 0
		}
	}
}

// splitTarget splits a request's target at its question mark, and removes scheme and
// authority from an absolute target (RFC 9112, 3.2). It replaces fasthttp's parser,
// which drops the text behind a number sign and resolves dot segments.
func splitTarget(target []byte) (path, query []byte, p *problem) {
	for _, c := range target { // fasthttp allows no control characters
		if c >= 0x80 || c == '#' {
			return nil, nil, notEncoded
		}
	}
	if target[0] != '/' {
		scheme, rest, absolute := bytes.Cut(target, []byte("://"))
		if string(target) == "*" { // fasthttp allows it for OPTIONS only
			return target, nil, nil
		}
		end := bytes.IndexAny(rest, "/?")
		if end < 0 {
			end = len(rest)
		}
		http := absolute && (bytes.EqualFold(scheme, []byte("http")) || bytes.EqualFold(scheme, []byte("https")))
		if !http || end == 0 || !isHost(rest[:end]) {
			return nil, nil, badRequest
		}
		target = rest[end:]
	}
	path, query, _ = bytes.Cut(target, []byte{'?'})
	return path, query, nil
}

// isHost reports whether the text has only characters of a host and a port (RFC 3986,
// 3.2.2). An @, which ends userinfo, is none of them.
func isHost(text []byte) bool {
	for _, c := range text {
		if !hostBytes[c] {
			return false
		}
	}
	return true
}

var hostBytes = func() (is [256]bool) {
	for _, c := range "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-._~%!$&'()*+,;=:[]" {
		is[c] = true
	}
	return is
}()

// isEncoded reports whether there is a Transfer-Encoding. fasthttp accepts and drops identity,
// behind which a proxy may see a body (RFC 9112, 6.3: no length can be known).
func isEncoded(h *fasthttp.RequestHeader) bool {
	const name = "transfer-encoding:"
	for line := range bytes.Lines(h.RawHeaders()) {
		if len(line) > len(name) && bytes.EqualFold(line[:len(name)], []byte(name)) {
			return true
		}
	}
	return false
}

// acceptsGzip reads Accept-Encoding (RFC 9110, 12.5.3). It reports whether gzip is
// acceptable and identity is not preferred to it. A coding that is not named has the
// weight of *. Identity without a weight is acceptable and not preferred.
func acceptsGzip(lines [][]byte) bool {
	gzip, identity, others := -1., -1., -1. // -1 = not named
	for _, line := range lines {
		for len(line) > 0 {
			var item []byte
			item, line, _ = bytes.Cut(line, []byte{','})
			coding, quality, _ := bytes.Cut(item, []byte{';'})
			coding = bytes.TrimSpace(coding)
			switch {
			case bytes.EqualFold(coding, []byte("gzip")), bytes.EqualFold(coding, []byte("x-gzip")):
				gzip = max(gzip, weight(quality))
			case bytes.EqualFold(coding, []byte("identity")):
				identity = weight(quality)
			case string(coding) == "*":
				others = weight(quality)
			}
		}
	}
	if gzip < 0 {
		gzip = others
	}
	if identity < 0 {
		identity = others
	}
	return gzip > 0 && gzip >= identity
}

// weight returns the q of an item's parameters. An absent or invalid q is 1.
func weight(list []byte) float64 {
	for len(list) > 0 {
		var p []byte
		p, list, _ = bytes.Cut(list, []byte{';'})
		name, value, _ := bytes.Cut(bytes.TrimSpace(p), []byte{'='})
		if q, err := strconv.ParseFloat(string(value), 64); bytes.EqualFold(name, []byte("q")) && err == nil && q >= 0 && q <= 1 {
			return q
		}
	}
	return 1
}

// matchesETag evaluates If-None-Match (RFC 9110, 13.1.2), which is a list of entity tags,
// compared weakly, or *. It reports whether the tag is in the list: no other tag contains one
// of its quotes.
func matchesETag(lines [][]byte, etag []byte) bool {
	return slices.ContainsFunc(lines, func(line []byte) bool {
		return bytes.Contains(line, etag[len("W/"):]) || string(bytes.TrimSpace(line)) == "*"
	})
}

// parseCacheControl reads the directives of a request's Cache-Control that this service
// follows (RFC 9111, 5.2.1).
func parseCacheControl(lines [][]byte) (d cache.Directives) {
	for _, line := range lines {
		for len(line) > 0 {
			var directive []byte
			directive, line, _ = bytes.Cut(line, []byte{','})
			directive = bytes.TrimSpace(directive)
			d.NoCache = d.NoCache || bytes.EqualFold(directive, []byte("no-cache"))
			d.OnlyIfCached = d.OnlyIfCached || bytes.EqualFold(directive, []byte("only-if-cached"))
		}
	}
	return d
}

const (
	defaultLimit = 50
	maxSearch    = 120 // code points, after trimming
)

// endpoint is a list and what a request for it may ask.
type endpoint struct {
	*list.List
	parameters map[string]parameter // by name
}

// parameter is a query parameter of a list.
type parameter struct {
	place int // distinguishes the list's parameters
	// parse reads the value into q. It returns why the value is invalid, or an empty
	// text. nil = the cursor, which is parsed after all others.
	parse func(q *page.Query, value []byte) (why string)
}

// The places of the parameters that are no filters, which follow.
const (
	unknownPlace = iota // of any that the list has not
	cursorPlace
	limitPlace
	searchPlace
	sortPlace
	filterPlaces
	places = filterPlaces + list.MaxValues // at most: a filter has a value
)

// endpointOf returns the endpoint of a list.
func endpointOf(l *list.List) *endpoint {
	all := map[string]parameter{"cursor": {cursorPlace, nil}, "limit": {limitPlace, parseLimit}}
	if len(l.Search) > 0 {
		all["search"] = parameter{searchPlace, parseSearch}
	}
	all["sort"] = parameter{sortPlace, oneOf(ordersOf(l), func(q *page.Query, n int) { q.Order = n })}
	for i, f := range l.Filters {
		all[f.Name] = parameter{filterPlaces + i, oneOf(valuesOf(&f), func(q *page.Query, n int) {
			if n > 0 {
				q.Match |= f.Values[n-1].Bit
			}
		})}
	}
	return &endpoint{l, all}
}

// ordersOf returns the names of a list's orders, the default first.
func ordersOf(l *list.List) (names []string) {
	for _, o := range l.Orders {
		names = append(names, o.Name)
	}
	return names
}

// valuesOf returns the names of a filter's values, and first that of all rows.
func valuesOf(f *list.Filter) []string {
	names := []string{"all"}
	for _, v := range f.Values {
		names = append(names, v.Name)
	}
	return names
}

// enumerate joins names: by commas, and the last by word.
func enumerate(names []string, word string) string {
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " " + word + " " + names[last]
}

// request is what the client asks for.
type request struct {
	page.Query
	control cache.Directives

	tracks bool          // it asks what has changed since
	from   page.Tracking // if it tracks
}

// parseQuery reads the query string into asked, whose list is set. It is strict:
// a client that mistypes a filter must not get everything. It reports all errors
// at once. It appends what it decodes to room; asked refers to room and query, and is valid until
// they change.
func (e *endpoint) parseQuery(asked *request, query []byte, room *[]byte) (errs details) {
	q := &asked.Query
	q.Limit = defaultLimit
	var given [places]bool
	var cursor []byte
	for len(query) > 0 {
		var pair []byte
		pair, query, _ = bytes.Cut(query, []byte{'&'})
		if len(pair) == 0 {
			continue
		}
		rawName, rawValue, _ := bytes.Cut(pair, []byte{'='})
		name, badName := unescape(rawName, room)
		value, badValue := unescape(rawValue, room)
		p, known := e.parameters[string(name)]
		switch {
		case badName != "", len(name) == 0:
			errs.addUnknown(pair[:max(1, len(rawName))], "is not a parameter's name")
		case !known:
			errs.addUnknown(name, "is not a parameter of "+e.Name+"; these are "+enumerate(slices.Sorted(maps.Keys(e.parameters)), "and"))
		case given[p.place]:
			errs.add(string(name), "must be given once")
		case badValue != "":
			errs.add(string(name), badValue)
		case p.place == cursorPlace:
			cursor = value
		default:
			if why := p.parse(q, value); why != "" {
				errs.add(string(name), why)
			}
		}
		given[p.place] = true
	}
	if given[cursorPlace] && errs["cursor"] == "" {
		why := ""
		if page.IsTracking(cursor) {
			why = asked.parseTracking(cursor, errs == nil)
		} else {
			why = parseCursor(q, cursor, room, errs == nil)
		}
		if why != "" {
			errs.add("cursor", why)
		}
	}
	return errs
}

// oneOf makes the parser of a parameter that has one of these values; set gets its index.
func oneOf(values []string, set func(q *page.Query, n int)) func(*page.Query, []byte) string {
	why := "must be " + enumerate(values, "or")
	return func(q *page.Query, value []byte) string {
		n := slices.IndexFunc(values, func(v string) bool { return v == string(value) })
		if n < 0 {
			return why
		}
		set(q, n)
		return ""
	}
}

// parseLimit reads 1 to 100, without sign or leading zeros.
func parseLimit(q *page.Query, value []byte) (why string) {
	n, err := strconv.ParseUint(string(value), 10, 8)
	if err != nil || value[0] == '0' || n > page.MaxLimit {
		return "must be an integer from 1 to 100"
	}
	q.Limit = int(n)
	return ""
}

func parseSearch(q *page.Query, value []byte) (why string) {
	term := page.TextOf(bytes.TrimFunc(value, unicode.IsSpace))
	if utf8.RuneCountInString(term) > maxSearch {
		return "must have at most 120 characters"
	}
	q.Search = term
	return ""
}

// parseCursor reads a cursor, which must belong to the list that the other parameters in q
// name. scoped = these are all valid; otherwise it is not checked that the cursor belongs.
func parseCursor(q *page.Query, text []byte, room *[]byte, scoped bool) (why string) {
	var err error
	q.After, err = q.ParseCursor(room, text)
	switch {
	case err == nil, errors.Is(err, page.ErrCursorForeign) && !scoped:
		return ""
	case errors.Is(err, page.ErrCursorForeign):
		return "belongs to another list, sort, search or filter; use the parameters that it came with"
	case len(text) > page.MaxCursor:
		return "must have at most 512 characters"
	}
	return "is malformed; use nextCursor unchanged"
}

// unescape decodes a part of a query string, in room if it has to. It returns why the part
// is invalid, or an empty text.
func unescape(raw []byte, room *[]byte) (decoded []byte, why string) {
	decoded = raw
	if !slices.ContainsFunc(raw, func(c byte) bool { return c == '%' || c == '+' || c == 0 || c >= utf8.RuneSelf }) { // as most are
		return decoded, ""
	}
	if bytes.IndexByte(raw, '%') >= 0 || bytes.IndexByte(raw, '+') >= 0 {
		from := len(*room)
		*room = fasthttp.AppendUnquotedArg(*room, raw) // which leaves a percent sign that escapes nothing
		decoded = (*room)[from:]
		if len(decoded)+2*bytes.Count(raw, []byte{'%'}) != len(raw) {
			return nil, "must have two hexadecimal digits behind each percent sign"
		}
	}
	switch {
	case !utf8.Valid(decoded):
		return nil, "must be UTF-8, percent-encoded"
	case bytes.IndexByte(decoded, 0) >= 0:
		return nil, "must not have a NUL character"
	}
	return decoded, ""
}

const (
	maxUnknown = 10 // unknown parameters in details
	maxName    = 64 // bytes of an unknown parameter's name
)

// details says, for each invalid parameter, what is wrong with it. It has all parameters of
// the list that are invalid, and the first unknown ones.
type details map[string]string

// add notes what is wrong with a parameter.
func (d *details) add(name, why string) {
	if *d == nil {
		*d = details{}
	}
	(*d)[name] = why
}

// addUnknown notes an unknown parameter, unless there are many already: the size of a response
// is bounded, whatever a client sends. It replaces bytes of the name that are not UTF-8.
func (d *details) addUnknown(sent []byte, why string) {
	if len(*d) < maxUnknown {
		d.add(clip(strings.ToValidUTF8(strings.ReplaceAll(string(sent[:min(len(sent), 2*maxName)]), "\x00", "%00"), "\uFFFD"), maxName), why)
	}
}

// clip returns a copy of the text's first limit bytes, with an ellipsis if it is
// longer. A copy does not keep the whole text in memory.
func clip(text string, limit int) string {
	if len(text) <= limit {
		return strings.Clone(text)
	}
	return strings.ToValidUTF8(text[:limit], "") + "…"
}

// asFailure returns the failure for invalid parameters; nil = there are none. Its message says
// what is wrong with one, or names several, sorted.
func (d details) asFailure() *failure {
	if d == nil {
		return nil
	}
	names := slices.Sorted(maps.Keys(d))
	message := enumerate(names, "and") + " are not valid; details says why."
	if len(names) == 1 {
		message = names[0] + ": " + d[names[0]] + "."
	}
	return &failure{problem: invalid, message: message, details: d}
}
