package edge

import (
	"bytes"
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"listedge/origin"
)

const (
	defaultLimit = 50
	maxSearch    = 120 // code points, after trimming
)

// details tells, for each parameter at fault, what is wrong with it.
type details map[string]string

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

// parseQuery reads the query string into q, whose collection is set, strictly:
// an integration that mistypes a filter must not be sent everything. All that
// is wrong is told at once. scratch is for decoding; q keeps none of the bytes
// it is given. The reference is the table in the API's contract.
func parseQuery(q *origin.Query, query, scratch []byte) details {
	var wrong details
	blame := func(name, why string) {
		if wrong == nil {
			wrong = details{}
		}
		if _, told := wrong[name]; !told {
			wrong[name] = why
		}
	}

	var search, cursor, limit, sort, stock, typ parameter
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
		var p *parameter
		switch string(name) {
		case "search":
			p = &search
		case "cursor":
			p = &cursor
		case "limit":
			p = &limit
		case "sort":
			p = &sort
		case "type":
			p = &typ
		case "stock":
			if q.Collection == origin.Items {
				p = &stock
			}
		}
		switch {
		case !nameOK:
			blame(strings.ToValidUTF8(strings.ReplaceAll(string(rawName), "\x00", "%00"), "\uFFFD"), "is not a parameter's name")
		case p == nil:
			blame(string(name), "is not a parameter of this collection")
		case p.given:
			blame(string(name), "is given twice")
		case !valueOK:
			blame(string(name), "is not percent-encoded UTF-8 without NUL")
			p.given = true
		default:
			p.value, p.given = value, true
		}
	}

	q.Limit = defaultLimit
	if limit.given && wrong["limit"] == "" {
		var ok bool
		if q.Limit, ok = parseLimit(limit.value); !ok {
			blame("limit", "must be an integer from 1 to 100")
		}
	}
	if sort.given && wrong["sort"] == "" {
		var ok bool
		if q.Sort, ok = sorts[string(sort.value)]; !ok {
			blame("sort", "must be createdAt or name")
		}
	}
	if stock.given && wrong["stock"] == "" {
		var ok bool
		if q.Stock, ok = stocks[string(stock.value)]; !ok {
			blame("stock", "must be all, tracked or low")
		}
	}
	if typ.given && wrong["type"] == "" {
		var ok bool
		if q.Type, ok = types[q.Collection][string(typ.value)]; !ok {
			blame("type", [...]string{origin.Items: "must be all, goods or services", origin.Contacts: "must be all, customer or supplier"}[q.Collection])
		}
	}
	if search.given && wrong["search"] == "" {
		if term := bytes.TrimFunc(search.value, unicode.IsSpace); utf8.RuneCount(term) > maxSearch {
			blame("search", "must have at most 120 characters")
		} else {
			q.Search = string(term)
		}
	}
	if cursor.given && wrong["cursor"] == "" {
		if why := parseCursor(q, cursor.value, wrong == nil); why != "" {
			blame("cursor", why)
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
