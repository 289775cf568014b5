package main

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"listedge/origin/apikey"
)

// sum is the SHA-256 of a text in hex.
func sum(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }

// readKeys reads a file of keys for lists of items and contacts, at the end of 2026.
func readKeys(text string) (r keyReader, says string) {
	r = keyReader{digest: apikey.SHA256, scopes: []string{"items:read", "contacts:read"}, now: time.Date(2026, 12, 31, 0, 0, 0, 0, time.UTC),
		lines: map[apikey.Hash]int{}}
	err := r.read(strings.NewReader(text))
	if err == nil && len(r.bad) > 0 {
		err = r.mistakes()
	}
	if err != nil {
		says = err.Error()
	}
	return r, says
}

func TestAFileOfKeys(t *testing.T) {
	r, says := readKeys("\ufeffname,hash,expires,scopes,burst,rate\r\n" +
		"One," + sum("one") + ",,items:read,,\r\n" +
		`"Two, too",` + sum("two") + `,2027-01-31,"items:read,contacts:read,items:read",9,2.5` + "\n\n" +
		"Three, " + sum("three") + " ,2027-01-31T12:00:00+02:00,contacts:read,,4\n")
	if says != "" || len(r.keys) != 3 {
		t.Fatalf("%s, %+v", says, r.keys)
	}
	for i, want := range []string{
		"One [items:read] 50 100 -",
		"Two, too [contacts:read items:read] 2.5 9 2027-01-31T00:00:00Z",
		"Three [contacts:read] 4 8 2027-01-31T10:00:00Z",
	} {
		k := r.keys[i]
		if got := fmt.Sprint(k.Name, " ", k.Scopes, " ", k.Rate, " ", k.Burst, " ", instant(k.ExpiresAt)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if k.Hash != sha256.Sum256([]byte([]string{"one", "two", "three"}[i])) {
			t.Errorf("%s: %x", k.Name, k.Hash)
		}
	}
}

// Each bad line is named with all that is wrong with it, and nothing comes of the others.
func TestBadLinesOfAFileOfKeys(t *testing.T) {
	const header = "hash,name,scopes,rate,burst,expires\n"
	for _, c := range []struct{ name, text, says string }{
		{"an empty file", "", "header"},
		{"no keys", header, "the file has no keys"},
		{"an unknown column", "hash,name,scopes,limit\n", `line 1: the header has "limit"`},
		{"a column twice", "hash,name,scopes,name\n", `line 1: the header has "name"`},
		{"a missing column", "hash,scopes\n", "line 1: the header lacks name"},
		{"no header", sum("a") + ",A,items:read\n", "line 1: the header has"},
		{"many mistakes", header +
			sum("a") + ",A,items:read,,,\n" +
			sum("b")[:60] + ",B,items:read,fast,1.5,2026-12-31\n" +
			sum("a") + ",,items:write,,,\n" +
			sum("c") + ",C,,-1,0,soon\n" +
			sum("d") + ",D,items:read\n" +
			sum("e") + ",E,items:read,NaN,99999999999,\n",
			"line 3: the hash has 45 bytes, and a sha256 has 32\n" +
				`line 3: rate is "fast", which is no number, or none that it can be` + "\n" +
				`line 3: burst is "1.5", which is no number, or none that it can be` + "\n" +
				"line 3: it expired at 2026-12-31T00:00:00Z\n" +
				"line 4: line 2 has the same hash\n" +
				"line 4: name must be text without control characters, and not empty\n" +
				`line 4: scopes: no list has the scope "items:write"; known are items:read,contacts:read` + "\n" +
				"line 5: scopes must not be empty\n" +
				"line 5: rate -1 is negative\n"},
		{"half a quote", header + sum("a") + ",\"A,items:read,,,\n", "line 2: extraneous or missing \" in quoted-field"},
	} {
		_, says := readKeys(c.text)
		if !strings.Contains(says, c.says) {
			t.Errorf("%s: %s\nwant %s", c.name, says, c.says)
		}
		if c.name == "many mistakes" {
			for _, want := range []string{"line 6: wrong number of fields", "line 7: rate", "line 7: burst", "\nnothing was imported"} {
				if !strings.Contains(says, want) {
					t.Errorf("%s lacks %s", says, want)
				}
			}
		}
	}
	r, _ := readKeys(header + sum("a") + ",A,items:read,,,\n" + sum("b") + ",B,none,,,\n")
	if !slices.Equal(r.hashes, []apikey.Hash{sha256.Sum256([]byte("a")), sha256.Sum256([]byte("b"))}) {
		t.Errorf("%x: a stored hash of a bad line is not named", r.hashes)
	}
}
