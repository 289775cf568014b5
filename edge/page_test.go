package edge

import (
	"compress/gzip"
	"io"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
)

// A compressed page is one gzip member: browsers ignore everything after the first.
func TestGzipIsOneMemberForEveryLength(t *testing.T) {
	for _, n := range []int{0, 1, 255, 256, 4096, 65_535, 65_536, 200_000} {
		for _, text := range []string{strings.Repeat(`{"name":"é"},`, n/13+1), noise(n)} {
			oneMember(t, text[:max(0, n-len(bodyOf("")))], n >= 256 && text[0] == '{')
		}
	}
}

// noise is a text that cannot be compressed.
func noise(n int) string {
	b := make([]byte, n+1)
	random := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = random.Read(b)
	b[0] = 0
	return string(b)
}

// oneMember reads a page with one row.
func oneMember(t *testing.T, row string, pays bool) {
	t.Helper()
	body := bodyOf(row)
	s, _ := hitServer(t, row)
	for _, id := range []string{"a", strings.Repeat("z", 128)} {
		got := ask(t, s, "GET", theTarget, "X-API-Key", aKey, "Accept-Encoding", "gzip", "X-Request-Id", id)
		text := got.Body
		if compressed := got.Header("Content-Encoding") == "gzip"; compressed != pays {
			t.Fatalf("%d bytes: compressed: %v", len(body), compressed)
		} else if compressed {
			r := must(gzip.NewReader(strings.NewReader(got.Body)))
			r.Multistream(false)
			text = string(must(io.ReadAll(r)))
		}
		if text != body+`,"requestId":"`+id+`"}` {
			t.Fatalf("%d bytes, id of %d: read %d bytes", len(body), len(id), len(text))
		}
	}
}

func TestAcceptEncoding(t *testing.T) {
	s, _ := hitServer(t, strings.Repeat("{}", 1000))
	gzipped := func(headers ...string) bool {
		return ask(t, s, "GET", theTarget, append(headers, "X-API-Key", aKey)...).Header("Content-Encoding") == "gzip"
	}
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
		if got := gzipped("Accept-Encoding", header); got != want {
			t.Errorf("%q: %v", header, got)
		}
	}
	if !gzipped("Accept-Encoding", "br", "Accept-Encoding", "gzip") {
		t.Error("two header lines are one list")
	}
}

func TestRequestIDs(t *testing.T) {
	s, _ := hitServer(t, "")
	for id, want := range map[string]bool{
		"a": true, "0": true, "a.b_c:d-e": true, strings.Repeat("a", 128): true,
		"": false, ".a": false, "-": false, "a b": false, "a\"": false, "é": false, "a/b": false, strings.Repeat("a", 129): false,
	} {
		if got := ask(t, s, "GET", theTarget, "X-Request-Id", id).Header("X-Request-Id"); (got == id) != want {
			t.Errorf("%q: want %v", id, want)
		}
	}
	valid, seen := regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`), map[string]bool{}
	for range 2 { // connections
		r := converse(s, &spoken{chunks: [][]byte{[]byte(strings.Repeat(thePage+goodEnd, 500))}})
		for range 500 {
			id := readAnswer(t, r, "GET").Header("X-Request-Id")
			if !valid.MatchString(id) || seen[id] {
				t.Fatalf("made %q", id)
			}
			seen[id] = true
		}
	}
}
