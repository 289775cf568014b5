package edge

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"listedge/origin"
)

const (
	defaultLimit = 50
	maxSearch    = 120 // code points, after trimming
)

// The values of the enumerated parameters, by collection.
var (
	sorts  = map[string]origin.Sort{"createdAt": origin.ByCreatedAt, "name": origin.ByName}
	stocks = map[string]origin.Stock{"all": origin.AnyStock, "tracked": origin.Tracked, "low": origin.Low}
	types  = [...]map[string]origin.Type{
		origin.Items:    {"all": origin.AnyType, "goods": origin.Goods, "services": origin.Services},
		origin.Contacts: {"all": origin.AnyType, "customer": origin.Customers, "supplier": origin.Suppliers},
	}
)

// parameter is one of a request's parameters, decoded; given at most once.
type parameter struct {
	value []byte
	given bool
}

// parameters are all that a request can have.
type parameters struct{ search, cursor, limit, sort, stock, typ parameter }

// named is the collection's parameter of that name; nil = it has none.
func (p *parameters) named(name []byte, c origin.Collection) *parameter {
	switch string(name) {
	case "search":
		return &p.search
	case "cursor":
		return &p.cursor
	case "limit":
		return &p.limit
	case "sort":
		return &p.sort
	case "type":
		return &p.typ
	case "stock":
		if c == origin.Items {
			return &p.stock
		}
	}
	return nil
}

// read splits the query string. It omits values that cannot be decoded.
func (p *parameters) read(query, scratch []byte, c origin.Collection, errs *paramErrors) {
	for len(query) > 0 {
		var pair []byte
		pair, query, _ = bytes.Cut(query, []byte{'&'})
		if len(pair) == 0 {
			continue
		}
		rawName, rawValue, _ := bytes.Cut(pair, []byte{'='})
		var name, value []byte
		var nameOK, valueOK bool
		name, scratch, nameOK = unescape(rawName, scratch)
		value, scratch, valueOK = unescape(rawValue, scratch)
		switch one := p.named(name, c); {
		case !nameOK:
			errs.addUnknown(rawName, "is not a parameter's name")
		case one == nil:
			errs.addUnknown(name, "is not a parameter of this collection")
		case one.given:
			errs.add(string(name), "is given twice")
		case !valueOK:
			errs.add(string(name), "is not percent-encoded UTF-8 without NUL")
			one.given = true
		default:
			one.value, one.given = value, true
		}
	}
}

// parse reads the parameters of a request.
func (s *Server) parse(x *exchange) failure {
	if errs := parseQuery(&x.query, x.parameters, x.scratch[:0]); errs.details != nil {
		return failure{problem: invalid, params: errs}
	}
	return failure{}
}

// parseQuery reads the query string into q, whose collection is set. It is strict:
// a client that mistypes a filter must not get everything. It reports all errors
// at once. scratch is for decoding; q keeps none of the given bytes. The
// reference is openapi.json.
func parseQuery(q *origin.Query, query, scratch []byte) (errs paramErrors) {
	var p parameters
	p.read(query, scratch, q.Collection, &errs)
	q.Limit = defaultLimit
	if p.limit.given && !errs.has("limit") {
		var ok bool
		if q.Limit, ok = parseLimit(p.limit.value); !ok {
			errs.add("limit", "must be an integer from 1 to 100")
		}
	}
	parseEnum(&errs, "sort", p.sort, &q.Sort, sorts, "must be createdAt or name")
	parseEnum(&errs, "stock", p.stock, &q.Stock, stocks, "must be all, tracked or low")
	parseEnum(&errs, "type", p.typ, &q.Type, types[q.Collection], [...]string{
		origin.Items: "must be all, goods or services", origin.Contacts: "must be all, customer or supplier"}[q.Collection])
	if p.search.given && !errs.has("search") {
		if term := bytes.TrimFunc(p.search.value, unicode.IsSpace); utf8.RuneCount(term) > maxSearch {
			errs.add("search", "must have at most 120 characters")
		} else {
			q.Search = string(term)
		}
	}
	if p.cursor.given && !errs.has("cursor") {
		if why := parseCursor(q, p.cursor.value, errs.details == nil); why != "" {
			errs.add("cursor", why)
		}
	}
	return errs
}

// parseEnum reads a parameter that has one of a few values.
func parseEnum[T any](errs *paramErrors, name string, p parameter, to *T, values map[string]T, why string) {
	if !p.given || errs.has(name) {
		return
	}
	value, ok := values[string(p.value)]
	if !ok {
		errs.add(name, why)
	}
	*to = value
}

// parseCursor needs the other parameters in q. If one of them is invalid (scoped
// is false), the cursor may belong to another list or not.
func parseCursor(q *origin.Query, text []byte, scoped bool) (why string) {
	after, err := q.ParseCursor(text)
	switch {
	case err == nil:
		q.After = after
		return ""
	case errors.Is(err, origin.ErrCursorForeign):
		if !scoped {
			return ""
		}
		return "belongs to a list with another collection, sort, search or filter; use the parameters that it came with"
	case len(text) > origin.MaxCursor:
		return "must have at most 512 characters"
	}
	return "is malformed; use nextCursor unchanged"
}

// parseLimit reads 1 to 100, without sign or leading zeros.
func parseLimit(text []byte) (n int, ok bool) {
	if len(text) == 0 || len(text) > 3 || text[0] == '0' {
		return defaultLimit, false
	}
	for _, c := range text {
		if c < '0' || c > '9' {
			return defaultLimit, false
		}
		n = n*10 + int(c-'0')
	}
	return n, n <= origin.MaxLimit
}

// unescape decodes a part of a query string into scratch and returns the rest
// of scratch. It refuses what is not percent-encoded UTF-8 without NUL.
func unescape(raw, scratch []byte) (decoded, rest []byte, ok bool) {
	if isPlain(raw) {
		return raw, scratch, true
	}
	out := scratch[len(scratch):]
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		switch c {
		case '+':
			c = ' '
		case '%':
			if i+2 >= len(raw) {
				return nil, scratch, false
			}
			high, low := unhex(raw[i+1]), unhex(raw[i+2])
			if high > 15 || low > 15 {
				return nil, scratch, false
			}
			c = high<<4 | low
			i += 2
		}
		if c == 0 {
			return nil, scratch, false
		}
		out = append(out, c)
	}
	if !utf8.Valid(out) {
		return nil, scratch, false
	}
	return out, out[len(out):], true
}

// isPlain says whether the text needs no decoding, as nearly all.
func isPlain(raw []byte) bool {
	for _, c := range raw {
		if c == '+' || c == '%' || c == 0 || c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

func unhex(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return 255
}

// details says, for each invalid parameter, what is wrong with it.
type details map[string]string

// paramErrors are the invalid parameters. Those that the collection has, six at
// most, are all in details. Of unknown ones only the first are, with the beginnings
// of their names, so that a response is bounded however much a client sends.
type paramErrors struct {
	details details
	unknown int // in details
	omitted int // unknown ones that are not in details, as often as they are given
}

const (
	maxDetails = 16
	maxUnknown = maxDetails - 6 // of these
	maxName    = 64             // bytes of an unknown parameter's name
)

func (e *paramErrors) has(name string) bool { return e.details[name] != "" }

// add notes what is wrong with a parameter, unless something is noted already.
func (e *paramErrors) add(name, why string) {
	if e.details == nil {
		e.details = details{}
	}
	if !e.has(name) {
		e.details[name] = why
	}
}

// addUnknown notes a name that no parameter has. Bytes that are not UTF-8 are
// replaced.
func (e *paramErrors) addUnknown(sent []byte, why string) {
	name := clip(strings.ToValidUTF8(strings.ReplaceAll(string(sent[:min(len(sent), 2*maxName)]), "\x00", "%00"), "\uFFFD"), maxName)
	switch {
	case e.has(name):
	case e.unknown == maxUnknown:
		e.omitted++
	default:
		e.add(name, why)
		e.unknown++
	}
}

// message is the problem's, with the number of parameters that details lacks.
func (e *paramErrors) message(p *problem) string {
	if e.omitted == 0 {
		return p.message
	}
	return fmt.Sprintf("%s Beside those in details, %d more are unknown.", p.message, e.omitted)
}
