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

// read takes the query string apart. A value that cannot be decoded is left out.
func (p *parameters) read(query, scratch []byte, c origin.Collection, wrong *faults) {
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
			wrong.blameUnknown(rawName, "is not a parameter's name")
		case one == nil:
			wrong.blameUnknown(name, "is not a parameter of this collection")
		case one.given:
			wrong.blame(string(name), "is given twice")
		case !valueOK:
			wrong.blame(string(name), "is not percent-encoded UTF-8 without NUL")
			one.given = true
		default:
			one.value, one.given = value, true
		}
	}
}

// parseQuery reads the query string into q, whose collection is set, strictly:
// an integration that mistypes a filter must not be sent everything. All that
// is wrong is told at once. scratch is for decoding; q keeps none of the bytes
// it is given. The reference is openapi.json.
func parseQuery(q *origin.Query, query, scratch []byte) (wrong faults) {
	var p parameters
	p.read(query, scratch, q.Collection, &wrong)
	q.Limit = defaultLimit
	if p.limit.given && !wrong.has("limit") {
		var ok bool
		if q.Limit, ok = parseLimit(p.limit.value); !ok {
			wrong.blame("limit", "must be an integer from 1 to 100")
		}
	}
	if p.sort.given && !wrong.has("sort") {
		var ok bool
		if q.Sort, ok = sorts[string(p.sort.value)]; !ok {
			wrong.blame("sort", "must be createdAt or name")
		}
	}
	if p.stock.given && !wrong.has("stock") {
		var ok bool
		if q.Stock, ok = stocks[string(p.stock.value)]; !ok {
			wrong.blame("stock", "must be all, tracked or low")
		}
	}
	if p.typ.given && !wrong.has("type") {
		var ok bool
		if q.Type, ok = types[q.Collection][string(p.typ.value)]; !ok {
			wrong.blame("type", [...]string{origin.Items: "must be all, goods or services", origin.Contacts: "must be all, customer or supplier"}[q.Collection])
		}
	}
	if p.search.given && !wrong.has("search") {
		if term := bytes.TrimFunc(p.search.value, unicode.IsSpace); utf8.RuneCount(term) > maxSearch {
			wrong.blame("search", "must have at most 120 characters")
		} else {
			q.Search = string(term)
		}
	}
	if p.cursor.given && !wrong.has("cursor") {
		if why := parseCursor(q, p.cursor.value, wrong.details == nil); why != "" {
			wrong.blame("cursor", why)
		}
	}
	return wrong
}

// parseCursor needs the other parameters in q. Where one of them is at fault
// (scoped false), the cursor cannot be told to be another list's.
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
		return "belongs to a list with another collection, sort, search or filter; walk on with the parameters it came with"
	case len(text) > origin.MaxCursor:
		return "must have at most 512 characters"
	}
	return "is malformed; use nextCursor as it was given"
}

// parseLimit reads 1 to 100 in the one way it is written.
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

// isPlain says whether the text is written as it is meant, as nearly all are.
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

// details tells, for each parameter at fault, what is wrong with it.
type details map[string]string

// faults are the parameters at fault. Those that the collection has, six at
// most, are all in details. Of unknown ones only the first are, with the
// beginnings of their names: an answer is bounded, however many a client sends.
type faults struct {
	details details
	unknown int // in details
	unnamed int // unknown ones that are not in details, as often as they are given
}

const (
	maxFaults  = 16            // in details
	maxUnknown = maxFaults - 6 // of these
	maxName    = 64            // bytes of an unknown parameter's name
)

func (f *faults) has(name string) bool { return f.details[name] != "" }

// blame tells what is wrong with a parameter, unless that has been told already.
func (f *faults) blame(name, why string) {
	if f.details == nil {
		f.details = details{}
	}
	if !f.has(name) {
		f.details[name] = why
	}
}

// blameUnknown tells what is wrong with a name that no parameter has. Bytes that
// are not UTF-8 are replaced.
func (f *faults) blameUnknown(sent []byte, why string) {
	name := clip(strings.ToValidUTF8(strings.ReplaceAll(string(sent[:min(len(sent), 2*maxName)]), "\x00", "%00"), "\uFFFD"), maxName)
	switch {
	case f.has(name):
	case f.unknown == maxUnknown:
		f.unnamed++
	default:
		f.blame(name, why)
		f.unknown++
	}
}

// message is the problem's, with the number of parameters that details lacks.
func (f *faults) message(p *problem) string {
	if f.unnamed == 0 {
		return p.message
	}
	return fmt.Sprintf("%s Beside those in details, %d more are unknown.", p.message, f.unnamed)
}
