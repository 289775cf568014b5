package edge

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
)

func parseText(l *list.List, query string) (page.Query, details) {
	asked := request{Query: page.Query{List: l}}
	wrong := endpointOf(l).parseQuery(&asked, []byte(query), new([]byte))
	return asked.Query, wrong
}

func TestValidParameters(t *testing.T) {
	long := strings.Repeat("é", 120)
	plain := page.Query{List: listtest.Items, Limit: 50}
	with := func(change func(*page.Query)) page.Query { q := plain; change(&q); return q }
	for query, want := range map[string]page.Query{
		"":                      plain,
		"&&":                    plain,
		"limit=1":               with(func(q *page.Query) { q.Limit = 1 }),
		"limit=100":             with(func(q *page.Query) { q.Limit = 100 }),
		"%6cimit=%37":           with(func(q *page.Query) { q.Limit = 7 }),
		"sort=createdAt":        plain,
		"sort=name":             with(func(q *page.Query) { q.Order = listtest.ByName }),
		"stock=all&type=all":    plain,
		"stock=tracked":         with(func(q *page.Query) { q.Match |= listtest.Tracked }),
		"stock=low":             with(func(q *page.Query) { q.Match |= listtest.Low }),
		"type=goods":            with(func(q *page.Query) { q.Match |= listtest.Goods }),
		"type=services":         with(func(q *page.Query) { q.Match |= listtest.Services }),
		"search":                plain,
		"search=":               plain,
		"search=+%20%C2%A0+":    plain,
		"search=+a+b%09":        with(func(q *page.Query) { q.Search = "a b" }),
		"search=100%25_%5C":     with(func(q *page.Query) { q.Search = `100%_\` }),
		"search=" + long:        with(func(q *page.Query) { q.Search = long }),
		"search=+" + long + "+": with(func(q *page.Query) { q.Search = long }),
		"search=a%3Db=c":        with(func(q *page.Query) { q.Search = "a=b=c" }),
	} {
		got, wrong := parseText(listtest.Items, query)
		if wrong != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", query, got, wrong, want)
		}
	}
	if q, wrong := parseText(listtest.Contacts, "type=supplier"); wrong != nil || q.Match != listtest.Suppliers {
		t.Errorf("type=supplier: %+v, %v", q, wrong)
	}
}

func TestAllInvalidParametersAreReported(t *testing.T) {
	for _, c := range []struct {
		list  *list.List
		query string
		want  []string
	}{
		{listtest.Items, "limit=0", []string{"limit"}},
		{listtest.Items, "limit=101", []string{"limit"}},
		{listtest.Items, "limit=", []string{"limit"}},
		{listtest.Items, "limit", []string{"limit"}},
		{listtest.Items, "limit=05", []string{"limit"}},
		{listtest.Items, "limit=%2B5", []string{"limit"}},
		{listtest.Items, "limit=+5", []string{"limit"}},
		{listtest.Items, "limit=1e1", []string{"limit"}},
		{listtest.Items, "limit=18446744073709551617", []string{"limit"}},
		{listtest.Items, "limit=1&limit=1", []string{"limit"}},
		{listtest.Items, "limit=1&%6Cimit=1", []string{"limit"}},
		{listtest.Items, "sort=Name", []string{"sort"}},
		{listtest.Items, "sort=", []string{"sort"}},
		{listtest.Items, "stock=none", []string{"stock"}},
		{listtest.Contacts, "stock=all", []string{"stock"}},
		{listtest.Items, "type=customer", []string{"type"}},
		{listtest.Contacts, "type=goods", []string{"type"}},
		{listtest.Items, "Limit=1", []string{"Limit"}},
		{listtest.Items, "offset=5&page=2", []string{"offset", "page"}},
		{listtest.Items, "=x", []string{"="}},
		{listtest.Items, "search=%", []string{"search"}},
		{listtest.Items, "search=%4", []string{"search"}},
		{listtest.Items, "search=%zz", []string{"search"}},
		{listtest.Items, "search=%00", []string{"search"}},
		{listtest.Items, "search=a\x00b", []string{"search"}},
		{listtest.Items, "search=%ff", []string{"search"}},
		{listtest.Items, "search=\xff", []string{"search"}},
		{listtest.Items, "search=%ED%A0%80", []string{"search"}},
		{listtest.Items, "search=" + strings.Repeat("é", 121), []string{"search"}},
		{listtest.Items, "%ff=1", []string{"%ff"}},
		{listtest.Items, "cursor=", []string{"cursor"}},
		{listtest.Items, "cursor=" + strings.Repeat("A", 513), []string{"cursor"}},
		{listtest.Items, "limit=0&sort=x&stock=y&type=z&search=%00&cursor=!&foo", []string{"cursor", "foo", "limit", "search", "sort", "stock", "type"}},
	} {
		_, wrong := parseText(c.list, c.query)
		var got []string
		for name, why := range wrong {
			got = append(got, name)
			if why == "" {
				t.Errorf("%s %q: nothing said of %q", c.list.Name, c.query, name)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s %q: reports %q, want %q", c.list.Name, c.query, got, c.want)
		}
	}
}

// A cursor is of any limit. One whose list is unknown is not reported.
func TestCursorsOfOtherRequests(t *testing.T) {
	q, _ := parseText(listtest.Items, "search=tea&sort=name")
	q.After = positionOf(&q, "Chai")
	cursor := string(q.AppendCursor(nil))
	if got, wrong := parseText(listtest.Items, "search=tea&sort=name&limit=7&cursor="+cursor); wrong != nil || got.After != q.After {
		t.Errorf("with another limit: %v, %v", got.After, wrong)
	}
	if _, wrong := parseText(listtest.Items, "search=tea&sort=nam&cursor="+cursor); len(wrong) != 1 || wrong["sort"] == "" {
		t.Errorf("reports %v, want only sort", wrong)
	}
}

// The standard library reads query strings too, more leniently. Where both
// accept, they must agree, and what we accept must be within the contract.
func FuzzParseQuery(f *testing.F) {
	for _, seed := range []string{"", "limit=5&sort=name", "search=a+b%20c&stock=low", "cursor=AAAA", "limit=1;search=x", "search=%F0%9F%98%80", "a=%",
		"type=goods&&type=goods"} {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	f.Fuzz(func(t *testing.T, query string, items bool) {
		l := listtest.Contacts
		if items {
			l = listtest.Items
		}
		q, wrong := parseText(l, query)
		if again, wrongAgain := parseText(l, query); again != q || len(wrong) != len(wrongAgain) {
			t.Fatal("two readings of one query differ")
		}
		for name := range wrong {
			if !utf8.ValidString(name) {
				t.Fatalf("detail %q is not UTF-8", name)
			}
		}
		if wrong != nil {
			return
		}
		if q.Limit < 1 || q.Limit > 100 || utf8.RuneCountInString(q.Search) > 120 || !utf8.ValidString(q.Search) ||
			strings.ContainsRune(q.Search, 0) || strings.TrimFunc(q.Search, unicode.IsSpace) != q.Search {
			t.Fatalf("accepted %+v", q)
		}
		if strings.Contains(query, ";") {
			return // which the standard library refuses
		}
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatalf("accepted what net/url refuses: %v", err)
		}
		for name, all := range values {
			if len(all) != 1 {
				t.Fatalf("accepted %q %d times", name, len(all))
			}
		}
		if got := strings.TrimFunc(values.Get("search"), unicode.IsSpace); got != q.Search {
			t.Fatalf("search %q, net/url reads %q", q.Search, got)
		}
	})
}

// The size of an error response is bounded, however many parameters are wrong and however
// long their names are. It names all that exist, and some of the others.
func TestReportedParametersAreBounded(t *testing.T) {
	s, ctx := hitServer(t, "")
	const own = "&search=%00&cursor=x&limit=0&sort=x&stock=x&type=x"
	for _, c := range []struct {
		name, query string
		named       int
	}{
		{"few", "a&b" + own, 8},
		{"as many as are named", unknownParameters(maxUnknown) + own, maxUnknown + 6},
		{"far more", unknownParameters(2500) + own, maxUnknown + 6},
		{"named ones again", unknownParameters(maxUnknown) + unknownParameters(maxUnknown), maxUnknown},
		{"long names", "a" + strings.Repeat("x", 5000) + "&b" + strings.Repeat("%01", 2000) + "&c" + strings.Repeat("%ff", 2000), 3},
		{"long names that begin alike", strings.Repeat("&"+strings.Repeat("x", 100), 50), 1},
		{"names that cannot be read", strings.Repeat("&%", 50), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx.Request.SetRequestURI("/v1/items?" + c.query)
			ctx.Request.Header.Set("X-API-Key", aKey) // the buffers of a large request are dropped after its response
			got := answerTo(t, s, ctx)
			var body struct {
				Error struct {
					Message string
					Details map[string]string
				}
			}
			if err := json.Unmarshal([]byte(got.Body), &body); err != nil || got.Status != 400 {
				t.Fatalf("%v %d %s", err, got.Status, got.Body)
			}
			if n := len(body.Error.Details); n != c.named {
				t.Errorf("%d are named, want %d: %s", n, c.named, got.Body)
			}
			for _, name := range []string{"search", "cursor", "limit", "sort", "stock", "type"} {
				if strings.HasSuffix(c.query, own) && body.Error.Details[name] == "" {
					t.Errorf("%s is not named: %s", name, got.Body)
				}
			}
			for name := range body.Error.Details {
				if !strings.Contains(body.Error.Message, name) {
					t.Errorf("%q does not name %q", body.Error.Message, name)
				}
			}
			if len(got.Body) > 8<<10 {
				t.Errorf("an answer of %d bytes", len(got.Body))
			}
		})
	}
}

func TestLinkToTheNextPage(t *testing.T) {
	q, wrong := parseText(listtest.Items, `limit=7&sort=name&stock=low&type=goods&search=a%26b>%22;c+%C3%A9`)
	if wrong != nil {
		t.Fatal(wrong)
	}
	var link, short header
	link.link(&q, "NEXT", "next")
	address, begins := strings.CutPrefix(string(link), "<?")
	address, ends := strings.CutSuffix(address, `>; rel="next"`)
	if !begins || !ends || strings.ContainsAny(address, "<>\" ") {
		t.Fatalf("not a link: %s", link)
	}
	query, ok := strings.CutSuffix(address, "&cursor=NEXT")
	if !ok {
		t.Fatalf("no cursor: %s", link)
	}
	if got, wrong := parseText(listtest.Items, query); wrong != nil || got != q {
		t.Errorf("%s reads as %+v, %v; want %+v", query, got, wrong, q)
	}
	plain, _ := parseText(listtest.Contacts, "")
	if short.link(&plain, "N", "next"); string(short) != `<?cursor=N>; rel="next"` {
		t.Errorf("%s", short)
	}
}

func FuzzTarget(f *testing.F) {
	for _, target := range []string{"/v1/items?limit=1", "http://a/b?c", "//a/b?c=://", "/a#b", "/a?search=東京", "*", "http://a@b/", "http://a?b/c"} {
		f.Add(target)
	}
	f.Fuzz(func(t *testing.T, target string) {
		path, parameters, refused := splitTarget([]byte(target))
		raw := strings.Contains(target, "#") || strings.ContainsFunc(target, func(r rune) bool { return r > 0x7f })
		if raw != (refused == notEncoded) {
			t.Errorf("%q: %v", target, refused)
		}
		if refused != nil {
			return
		}
		before, after, _ := strings.Cut(target, "?")
		if !strings.HasSuffix(before, string(path)) || after != string(parameters) || target[0] == '/' && before != string(path) {
			t.Errorf("%q: %q and %q", target, path, parameters)
		}
	})
}

func FuzzIfNoneMatch(f *testing.F) {
	f.Add(`"x", W/"abc"`, "abc")
	f.Add(`*`, "abc")
	f.Add(`W/"`, "")
	f.Fuzz(func(t *testing.T, header, tag string) {
		if strings.ContainsAny(tag, "\"") {
			return
		}
		matches := matchesETag([][]byte{[]byte(header)}, []byte(`W/"`+tag+`"`))
		if matches && !strings.Contains(header, `"`+tag+`"`) && !strings.Contains(header, "*") {
			t.Fatalf("%q matches %q", header, tag)
		}
		// A tag that is appended to a list of tags is found in the list.
		if !matchesETag([][]byte{[]byte(`"other", W/"` + tag + `"`)}, []byte(`W/"`+tag+`"`)) {
			t.Fatalf("%q is not found in its own list", tag)
		}
	})
}
