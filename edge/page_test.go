package edge

import (
	"bytes"
	"compress/gzip"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"listedge/internal/lists"
)

func TestGzipIsOneMemberForEveryLength(t *testing.T) {
	for _, n := range []int{0, 1, 255, 256, 4096, 65_535, 65_536, 200_000} {
		for _, id := range []string{"a", strings.Repeat("z", 128)} {
			body := []byte(strings.Repeat(`{"name":"é"},`, n/13+1)[:n])
			page := entryWith(t, string(body))
			deflate := page.Deflate()
			if (deflate == nil) != (n < 256) {
				t.Fatalf("%d bytes: deflate made: %v", n, deflate != nil)
			}
			if deflate == nil {
				continue
			}
			var a response
			a.setGzip(page, deflate, []byte(id))
			tail := appendTail(nil, []byte(id))
			r := must(gzip.NewReader(bytes.NewReader(slices.Concat(a.pieces[:]...))))
			r.Multistream(false) // browsers ignore everything after the first member
			got, err := io.ReadAll(r)
			if err != nil || string(got) != string(body)+string(tail) {
				t.Fatalf("%d bytes, id of %d: read %d bytes, %v", n, len(id), len(got), err)
			}
		}
	}
}

func TestIfNoneMatch(t *testing.T) {
	const etag = `W/"abc"`
	for _, c := range []struct {
		lines []string
		want  bool
	}{
		{nil, false},
		{[]string{``}, false},
		{[]string{`W/"abc"`}, true},
		{[]string{`"abc"`}, true},
		{[]string{`*`}, true},
		{[]string{` * `}, true},
		{[]string{`"x", W/"abc"`}, true},
		{[]string{`"x"`, `"abc"`}, true},
		{[]string{`"x","y",,"abc" , "z"`}, true},
		{[]string{`"x, W/"abc`}, false},
		{[]string{`abc`}, false},
		{[]string{`"abc`}, false},
		{[]string{`"ABC"`}, false},
		{[]string{`*abc`}, false},
		{[]string{`"ab"`, `"abcd"`}, false},
	} {
		var lines [][]byte
		for _, l := range c.lines {
			lines = append(lines, []byte(l))
		}
		if got := matchesETag(lines, []byte(etag)); got != c.want {
			t.Errorf("%q: %v", c.lines, got)
		}
	}
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

func TestAcceptEncoding(t *testing.T) {
	for header, want := range map[string]bool{
		"":                       false,
		"gzip":                   true,
		"GZip":                   true,
		"x-gzip":                 true,
		"br, gzip":               true,
		"gzip;q=0":               false,
		"gzip; q=0.000":          false,
		"gzip;q=0.001":           true,
		"gzip;Q=1":               true,
		"identity":               false,
		"*":                      true,
		"*;q=0":                  false,
		"*, gzip;q=0":            false,
		"*;q=0, gzip":            true,
		"br;q=1.0, *;q=0.5":      true,
		"gzipped":                false,
		"deflate, br":            false,
		"gzip;q=0, identity;q=0": false,

		"identity, gzip;q=0.5":            false,
		"gzip;q=0.5, identity;q=0.8":      false,
		"gzip;q=0.5, identity;q=0.5":      true,
		"gzip;q=0.501,identity;q=0.5":     true,
		"gzip;q=0.49 , identity ; q=0.50": false,
		"gzip;q=1, identity;q=1.000":      true,
		"gzip;q=0.5":                      true,
		"gzip;q=0.5, *;q=0.8":             false, // of which identity is one
		"gzip;q=0.5, *;q=0":               true,
		"gzip;q=0.5, identity;q=0":        true,
		"*;q=0.5, identity":               false,
		"x-gzip;q=0.9, identity;q=0.8":    true,
		"gzip;foo=bar;q=0":                false,
		"gzip;q=2":                        true, // no weight: as without
		"gzip, identity;q=5":              true,
		"gzip;q=x, identity;q=0.5":        true,
		"gzip;q=-1":                       true,
		"gzip;q=":                         true,
	} {
		if got := acceptsGzip([][]byte{[]byte(header)}); got != want {
			t.Errorf("%q: %v", header, got)
		}
	}
	if !acceptsGzip([][]byte{[]byte("br"), []byte("gzip")}) {
		t.Error("two header lines are one list")
	}
}

func TestLinkToTheNextPage(t *testing.T) {
	q, wrong := parseText(lists.Items, `limit=7&sort=name&stock=low&type=goods&search=a%26b>%22;c+%C3%A9`)
	if wrong != nil {
		t.Fatal(wrong)
	}
	link := string(appendLink(nil, &q, "NEXT"))
	address, begins := strings.CutPrefix(link, "<?")
	address, ends := strings.CutSuffix(address, `>; rel="next"`)
	if !begins || !ends || strings.ContainsAny(address, "<>\" ") {
		t.Fatalf("not a link: %s", link)
	}
	query, ok := strings.CutSuffix(address, "&cursor=NEXT")
	if !ok {
		t.Fatalf("no cursor: %s", link)
	}
	if got, wrong := parseText(lists.Items, query); wrong != nil || got != q {
		t.Errorf("%s reads as %+v, %v; want %+v", query, got, wrong, q)
	}
	plain, _ := parseText(lists.Contacts, "")
	if got := string(appendLink(nil, &plain, "N")); got != `<?cursor=N>; rel="next"` {
		t.Error(got)
	}
}

func TestRequestIDs(t *testing.T) {
	for id, want := range map[string]bool{
		"a": true, "0": true, "a.b_c:d-e": true, strings.Repeat("a", 128): true,
		"": false, ".a": false, "-": false, "a b": false, "a\"": false, "é": false, "a/b": false, strings.Repeat("a", 129): false,
	} {
		if validRequestID([]byte(id)) != want {
			t.Errorf("%q: want %v", id, want)
		}
	}
	seen := map[string]bool{}
	requests := [2]fasthttp.RequestCtx{}
	for i := range requests {
		requests[i].Init2(newConn(&wire{}), nil, false)
	}
	for i := range 1000 {
		x := begin(&requests[i%2])
		if id := string(x.id); !validRequestID(x.id) || seen[id] {
			t.Fatalf("made %q", id)
		}
		seen[string(x.id)] = true
	}
}
