package edge

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"listedge/cache"
	"listedge/internal/lists"
	"listedge/limiter"
	"listedge/origin"
	"listedge/origin/apikey"
)

// Preconditions in the order of RFC 9110, 13.2.2, on a page with a weak ETag
// and without a modification date.
func TestPreconditions(t *testing.T) {
	const body = `{"data":[]`
	etag := cache.TagOf([]byte(body)).String()
	strong := strings.TrimPrefix(etag, "W/")
	const past, future = "Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 31 Dec 2100 23:59:59 GMT"
	s, ctx := hitServer(t, body)
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
	} {
		for _, method := range []string{"GET", "HEAD"} {
			request := &fasthttp.RequestCtx{}
			request.Init2(newConn(&wire{}), nil, false)
			ctx.Request.CopyTo(&request.Request)
			request.Request.Header.SetMethod(method)
			for i := 0; i < len(c.headers); i += 2 {
				request.Request.Header.Add(c.headers[i], c.headers[i+1])
			}
			got := answerTo(t, s, request)
			if got.status != c.status {
				t.Errorf("%s, %s: %+v, want %d", name, method, got, c.status)
			}
			if c.status == 412 && method == "GET" && !strings.Contains(got.body, etagMismatch.code) {
				t.Errorf("%s: %+v", name, got)
			}
		}
	}
}

// A 304, 412 or 504 from memory costs no token and needs none, on any page. Everything else
// costs one, and is 429 without one.
func TestWhatCostsAToken(t *testing.T) {
	const body = `{"data":[]`
	etag := cache.TagOf([]byte(body)).String()
	q := origin.Query{Limit: 20, Sort: lists.ByName, Filter: lists.Goods | lists.Low, After: (&lists.Row{}).SetTexts("N", "").Position(lists.ByName)}
	second := theTarget + "&cursor=" + string(q.AppendCursor(nil))
	for name, c := range map[string]struct {
		header, value, target string
		status                int
		free                  bool
	}{
		"page":                       {"Accept", "*/*", theTarget, 200, false},
		"page with a cursor":         {"Accept", "*/*", second, 200, false},
		"modified":                   {"If-None-Match", `"other"`, theTarget, 200, false},
		"not modified":               {"If-None-Match", etag, theTarget, 304, true},
		"not modified, any":          {"If-None-Match", "*", theTarget, 304, true},
		"not modified with a cursor": {"If-None-Match", etag, second, 304, true},
		"mismatch":                   {"If-Match", etag, theTarget, 412, true},
		"mismatch with a cursor":     {"If-Match", etag, second, 412, true},
		"not stored":                 {"Cache-Control", "only-if-cached", "/v1/items", 504, true},
		"not stored and not to be":   {"Cache-Control", "no-cache, only-if-cached", second, 504, true},
		"stored":                     {"Cache-Control", "only-if-cached", theTarget, 200, false},
		"wrong parameter":            {"If-None-Match", "*", "/v1/items?limit=0", 400, false},
		"mismatch, wrong parameter":  {"If-Match", `"other"`, "/v1/items?limit=0", 400, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, ctx := hitServer(t, body)
			entry, _ := keyOf(t, s)
			q.Workspace = entry.Key.Workspace
			fillWith(t, s.Cache, q, body)
			policy := must(policyOf(apikey.Limit{Set: true, Rate: 0.001, Burst: 100}))
			bucket := s.Limiter.Bucket(limiter.KeyBucket(entry.Key.Workspace.String(), entry.Key.ID.String()), policy)
			ctx.Request.SetRequestURI(c.target)
			ctx.Request.Header.Set(c.header, c.value)
			before := s.Limiter.Peek(time.Now(), bucket, nil, nil).Key.Remaining
			got := answerTo(t, s, ctx)
			left := s.Limiter.Peek(time.Now(), bucket, nil, nil).Key.Remaining
			if cost := before - left; got.status != c.status || (cost == 0) != c.free || cost > 1 || got.header("X-Ratelimit-Remaining") != fmt.Sprint(left) {
				t.Errorf("%+v cost %d, want %d", got, cost, c.status)
			}
			for s.Limiter.Take(time.Now(), bucket, nil, nil).Allowed {
			}
			want := c.status
			if !c.free {
				want = 429
			}
			if got := answerTo(t, s, ctx); got.status != want {
				t.Errorf("%+v without a token, want %d", got, want)
			}
		})
	}
}
