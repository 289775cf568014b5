package edge

import (
	"strings"
	"testing"

	"listedge/cache"
)

// Preconditions in the order of RFC 9110, 13.2.2, on a page with a weak ETag
// and without a modification date.
func TestPreconditions(t *testing.T) {
	etag := cache.TagOf([]byte(bodyOf(""))).String()
	strong := strings.TrimPrefix(etag, "W/")
	tag := strings.Trim(strong, `"`)
	const past, future = "Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 31 Dec 2100 23:59:59 GMT"
	s, _ := hitServer(t, "")
	ask := asking(t, s)
	for name, c := range map[string]struct {
		headers []string // names and values
		status  int
	}{
		"no precondition":                    {nil, 200},
		"If-Match: *":                        {[]string{"If-Match", "*"}, 200},
		"If-Match: *, with blanks":           {[]string{"If-Match", " * "}, 200},
		"its own weak tag matches no tag":    {[]string{"If-Match", etag}, 412},
		"its own tag, sent as strong":        {[]string{"If-Match", strong}, 412},
		"another tag":                        {[]string{"If-Match", `"other"`}, 412},
		"a list":                             {[]string{"If-Match", `"a", ` + etag}, 412},
		"* is no member of a list":           {[]string{"If-Match", `*, "a"`}, 412},
		"* twice":                            {[]string{"If-Match", "*", "If-Match", "*"}, 412},
		"nothing":                            {[]string{"If-Match", ""}, 412},
		"no tag":                             {[]string{"If-Match", "other"}, 412},
		"If-Match fails first":               {[]string{"If-None-Match", etag, "If-Match", etag}, 412},
		"If-Match is met, then not modified": {[]string{"If-Match", "*", "If-None-Match", etag}, 304},
		"If-Match is met, then modified":     {[]string{"If-Match", "*", "If-None-Match", `"other"`}, 200},
		"unmodified since, always ignored":   {[]string{"If-Unmodified-Since", past}, 200},
		"modified since, always ignored":     {[]string{"If-Modified-Since", future}, 200},
		"ignored beside a tag":               {[]string{"If-Modified-Since", past, "If-None-Match", etag}, 304},
		"none: empty":                        {[]string{"If-None-Match", ""}, 200},
		"none: its tag":                      {[]string{"If-None-Match", etag}, 304},
		"none: its tag as strong":            {[]string{"If-None-Match", strong}, 304},
		"none: *":                            {[]string{"If-None-Match", "*"}, 304},
		"none: * with blanks":                {[]string{"If-None-Match", " * "}, 304},
		"none: in a list":                    {[]string{"If-None-Match", `"x", ` + etag}, 304},
		"none: in a second line":             {[]string{"If-None-Match", `"x"`, "If-None-Match", strong}, 304},
		"none: among empty elements":         {[]string{"If-None-Match", `"x","y",,` + strong + ` , "z"`}, 304},
		"none: within another tag":           {[]string{"If-None-Match", `"x, W/"` + tag}, 200},
		"none: no quotes":                    {[]string{"If-None-Match", tag}, 200},
		"none: one quote":                    {[]string{"If-None-Match", `"` + tag}, 200},
		"none: capitals":                     {[]string{"If-None-Match", strings.ToUpper(etag)}, 200},
		"none: * and its tag":                {[]string{"If-None-Match", "*" + tag}, 200},
		"none: shorter and longer":           {[]string{"If-None-Match", `"` + tag[:21] + `"`, "If-None-Match", `"` + tag + `d"`}, 200},
	} {
		for _, method := range []string{"GET", "HEAD"} {
			request := theTarget + " HTTP/1.1\r\nHost: a\r\nX-API-Key: " + aKey + "\r\n"
			for i := 0; i < len(c.headers); i += 2 {
				request += c.headers[i] + ": " + c.headers[i+1] + "\r\n"
			}
			got := ask(t, method, request)
			if got.Status != c.status {
				t.Errorf("%s, %s: %+v, want %d", name, method, got, c.status)
			}
			if c.status == 412 && method == "GET" && !strings.Contains(got.Body, "REQUEST_FAILED") {
				t.Errorf("%s: %s", name, got.Body)
			}
		}
	}
}
