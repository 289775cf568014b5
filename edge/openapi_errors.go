package edge

import (
	"cmp"
	"slices"
	"strings"

	"listedge/internal/list"
	"listedge/internal/page"
)

// errorResponse is an error that the reference describes: a component, and one more for HEAD.
type errorResponse struct {
	Name     string
	Status   int
	Public   bool // also of requests that need no key
	counted  counted
	About    string
	Examples []errorExample
}

// counted says when a response has the headers of limits. It ends the names of their components.
type counted string

const (
	notCounted counted = "-"
	sometimes  counted = "IfCounted"
	always     counted = ""
)

// errorExample is an error of the service. Its failure is nil if the problem says all.
type errorExample struct {
	Name, Summary string
	problem       *problem
	failure       *failure
}

// exampleID is the request id of examples.
const exampleID = "q7m2xk5vtd-2s"

// Body returns the body of the response.
func (e *errorExample) Body() string {
	return string(problemBody(cmp.Or(e.failure, &failure{problem: e.problem}), []byte(exampleID)))
}

// Headers returns the headers of the response in JSON.
func (r *errorResponse) Headers() string {
	names := []string{"Cache-Control=NoStore", "X-Content-Type-Options"}
	if r.Status == rateLimited.status || r.Status == originDown.status {
		names = append(names, "Retry-After")
	}
	if r.counted != notCounted {
		for _, name := range limitHeaders {
			names = append(names, name+"="+strings.ReplaceAll(name, "-", "")+string(r.counted))
		}
	}
	return headersOf(append(names, "X-Request-Id")...)
}

// limitHeaders are the headers of limits.
var limitHeaders = []string{"RateLimit-Policy", "RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"}

// headersOf returns headers in JSON. The component of one is called as it is, without hyphens, unless = and a name follow.
func headersOf(names ...string) string {
	var all object
	for _, name := range names {
		name, component, found := strings.Cut(name, "=")
		if !found {
			component = strings.ReplaceAll(name, "-", "")
		}
		all.add(name, refTo("headers", component))
	}
	return jsonOf(all)
}

// pageHeaders returns the headers of a page in JSON.
func pageHeaders(more ...string) string {
	return headersOf(slices.Concat([]string{"ETag", "Cache-Control", "X-Content-Type-Options", "Vary", "Age", "Cache-Status", "Link"},
		limitHeaders, []string{"X-Request-Id"}, more)...)
}

// errorResponsesOf returns the errors of the lists. What they say of parameters is what the parser says of
// requests that have such ones.
func errorResponsesOf(lists []*list.List) []errorResponse {
	var wrong []errorExample
	show := func(name, summary string, l *list.List, query string) {
		asked := request{Query: page.Query{List: l}}
		failure := endpointOf(l).parseQuery(&asked, []byte(query), new([]byte)).asFailure()
		wrong = append(wrong, errorExample{name, summary, nil, failure})
	}
	l := lists[0]
	other := page.Query{List: l, Search: "other"}
	cursor := string(other.AppendCursor(nil))
	show("unknownParameter", "A parameter that does not exist", l, "serach=tea")
	show("givenTwice", "A parameter given twice", l, "limit=1&limit=2")
	show("notUTF8", "A value that is not UTF-8", l, "sort=%FF")
	show("notEncoded", "A percent sign that stands for itself", l, "sort=100%")
	show("nul", "A NUL character", l, "sort=%00")
	show("notAName", "A name that is not UTF-8", l, "%FF=1")
	show("malformedCursor", "A damaged cursor", l, "cursor="+cursor[1:])
	show("longCursor", "Too long for a cursor", l, "cursor="+strings.Repeat("A", page.MaxCursor+1))
	show("foreignCursor", "A cursor of another list", l, "cursor="+cursor)
	for _, l := range lists {
		query := "limit=0&sort=*"
		for _, f := range l.Filters {
			query += "&" + f.Name + "=*"
		}
		show("valuesOf-"+l.Name, "Values outside their sets, of "+l.Name, l, query)
	}
	i := slices.IndexFunc(lists, func(l *list.List) bool { return len(l.Search) > 0 })
	if i >= 0 {
		show("searchTooLong", "A search that is too long", lists[i], "search="+strings.Repeat("a", maxSearch+1))
	}
	all := slices.Clone(errorResponses)
	all[0].Examples = append(wrong, all[0].Examples...)
	return all
}

var unreadable = []errorExample{
	{"unreadable", "Not well-formed HTTP", badRequest, nil},
	{"rawAddress", "A letter beyond ASCII, or a number sign, in the address", notEncoded, nil},
}

// errorResponses are the errors of every list, that of parameters first. The examples have every problem.
var errorResponses = []errorResponse{
	{"BadRequest", 400, false, sometimes, "Invalid parameters, all of them named in `details` (`VALIDATION_ERROR`), or a request that is not well-formed HTTP " +
		"(`REQUEST_FAILED`, without rate-limit headers). The limit is checked before the parameters: a `VALIDATION_ERROR` costs a token.", unreadable},
	{"Unreadable", 400, true, notCounted, "The request is not well-formed HTTP.", unreadable},
	{"Unauthorized", 401, false, notCounted, "No valid key: the header is missing, empty, given twice or malformed, or the key is unknown, revoked or expired, " +
		"which all get the same answer. No rate-limit headers.", []errorExample{
		{"missing", "No key, or more than one", keyMissing, nil},
		{"malformed", "A mistyped key", keyMalformed, nil},
		{"refused", "Unknown, revoked or expired", keyRefused, nil},
	}},
	{"Forbidden", 403, false, notCounted, "The key lacks the list's scope, or its workspace is suspended. No rate-limit headers.", []errorExample{
		{"scope", "The scope is missing", scopeMissing, nil},
		{"suspended", "The workspace is suspended", suspended, nil},
	}},
	{"RequestTimeout", 408, true, notCounted, "The request did not arrive in time.", []errorExample{{"tooSlow", "Too slow", tooSlow, nil}}},
	{"PreconditionFailed", 412, false, always, "`If-Match` names a tag. An `ETag` of a page is weak and matches none; only `*` does.",
		[]errorExample{{"ifMatch", "A tag in If-Match", etagMismatch, nil}}},
	{"ContentTooLarge", 413, true, notCounted, "The request has a body. There is none in a list request.", []errorExample{{"body", "A body", bodyTooLarge, nil}}},
	{"TooManyRequests", 429, true, sometimes, "A bucket is empty, or the quota of the workspace is used up (`PLAN_LIMIT_REACHED`); `Retry-After` says when to " +
		"try again. With valid keys the rate-limit headers are there; requests with invalid keys, and those that need no key, are limited per client address, " +
		"without them.", []errorExample{
		{"bucketEmpty", "The key's or the workspace's bucket is empty", rateLimited, nil},
		{"quotaUsedUp", "The workspace's quota is used up until its period ends", quotaReached, nil},
		{"withoutKey", "Too many requests from this address that need no key", noKeyLimited, nil},
		{"invalidKeys", "Too many invalid keys from this address", authLimited, nil},
	}},
	{"HeaderFieldsTooLarge", 431, true, notCounted, "The request's header is too large.", []errorExample{{"header", "Too large a header", headersTooLarge, nil}}},
	{"InternalError", 500, true, sometimes, "Something went wrong in the service. The request id leads to the cause.",
		[]errorExample{{"internal", "A fault", internalError, nil}}},
	{"ServiceUnavailable", 503, true, sometimes, "The database cannot answer and there is no stale page that may be served, or the key cannot be checked, " +
		"or changes are asked for that are not proven. `Retry-After` says when to try again.", []errorExample{
		{"database", "The database is away", originDown, nil},
		{"closed", "The database does not let the service read this list", originClosed, nil},
		{"busy", "Too many queries are waiting", originBusy, nil},
		{"slow", "The query took too long", originSlow, nil},
		{"slowSearch", "The search took too long", searchSlow, nil},
		{"keys", "Keys cannot be checked", keysDown, nil},
		{"connections", "Too many connections", tooManyConns, nil},
		{"unproven", "Changes are asked for, and it is not proven that all are known", unproven, nil},
	}},
	{"NotStored", 504, false, always, "`Cache-Control: only-if-cached` was sent, and no stored page may be served.",
		[]errorExample{{"onlyIfCached", "Nothing stored", notStored, nil}}},
	{"VersionNotSupported", 505, true, notCounted, "The request is in another version of HTTP than 1.1 or 1.0.",
		[]errorExample{{"version", "HTTP/2.0", wrongVersion, nil}}},
}
