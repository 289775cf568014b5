package apikey_test

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/boottime"
	"listedge/internal/boottime/boottimetest"
	"listedge/origin/apikey"
	"listedge/origin/postgres"
)

func TestDigestsFromText(t *testing.T) {
	short, long := sha256.Sum256([]byte("a key")), sha512.Sum512([]byte("a key"))
	for _, c := range []struct {
		digest apikey.Digest
		sum    []byte
		stored apikey.Hash
	}{{apikey.SHA256, short[:], short}, {apikey.SHA512, long[:], sha256.Sum256(long[:])}} {
		for _, text := range []string{hex.EncodeToString(c.sum), strings.ToUpper(hex.EncodeToString(c.sum)), base64.StdEncoding.EncodeToString(c.sum),
			base64.RawStdEncoding.EncodeToString(c.sum), base64.URLEncoding.EncodeToString(c.sum), base64.RawURLEncoding.EncodeToString(c.sum)} {
			if h, err := c.digest.Parse(text); err != nil || h != c.stored {
				t.Errorf("%s %s: %x, %v", c.digest, text, h, err)
			}
		}
	}
	none := sha256.Sum256(nil)
	for text, want := range map[string]string{
		"":                             "0 bytes",
		hex.EncodeToString(short[:31]): "32",
		hex.EncodeToString(long[:]):    "bytes, and a sha256 has 32",
		base64.StdEncoding.EncodeToString(long[:]): "has 64 bytes, and a sha256 has 32",
		strings.Repeat("g", 64):                    "neither hex nor base64",
		"$2y$10$abcdefghijklmnopqrstuv":            "neither hex nor base64",
		hex.EncodeToString(none[:]):                "of an empty text",
	} {
		if h, err := apikey.SHA256.Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %x, %v, want %s", text, h, err, want)
		}
	}
	none512 := sha512.Sum512(nil)
	if _, err := apikey.SHA512.Parse(hex.EncodeToString(none512[:])); err == nil {
		t.Error("the SHA-512 of nothing is taken")
	}
}

// formTable is the table of forms, beside that of keys.
type formTable struct {
	mu    sync.Mutex
	forms []apikey.Form
	reads int
	err   error
}

func (f *formTable) read(context.Context, string) ([]apikey.Form, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	return slices.Clone(f.forms), "", f.err
}

func (f *formTable) set(err error, forms ...apikey.Form) (reads int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	reads = f.reads
	f.forms, f.err, f.reads = forms, err, 0
	return reads
}

// imports stores the key number 0 by the hash that a text has in a form.
func imports(table *keyTable, form apikey.Form, hashed string) {
	digest := sha256.Sum256([]byte(hashed))
	if form.Digest == apikey.SHA512 {
		long := sha512.Sum512([]byte(hashed))
		digest = sha256.Sum256(long[:])
	}
	table.change(func(s *keyTable) { s.keys[digest] = s.keys[hashNumber(0)] })
}

func inRingWithForms(t *testing.T, table *keyTable, forms *formTable, test func(t *testing.T, r *ring)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &ring{}
		r.Cache = apikey.NewCache(table.lookup, forms.read, func(apikey.Key, *int64) {}, time.Minute, boottime.New())
		defer r.Close()
		test(t, r)
	})
}

// asked are the hashes that queries have asked for so far.
func (s *keyTable) asked() (all []apikey.Hash) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Concat(s.queries...)
}

func TestWhichTextsAreImportedKeys(t *testing.T) {
	whole, long, behind := apikey.Form{Digest: apikey.SHA256}, apikey.Form{Digest: apikey.SHA512}, apikey.Form{Digest: apikey.SHA256, Behind: "|"}
	sum512 := sha512.Sum512([]byte("a secret of theirs"))
	wrong := apikey.Generate()
	wrong = wrong[:42] + string(apikey.Base62[(strings.IndexByte(apikey.Base62, wrong[42])+1)%62])
	for _, c := range []struct {
		name   string
		forms  []apikey.Form
		of     apikey.Form
		hashed string // what the imported hash is of
		text   string // what a client sends
		err    error
		asked  int // hashes
	}{
		{"sha256", []apikey.Form{whole}, whole, "a secret of theirs", "a secret of theirs", nil, 1},
		{"sha512", []apikey.Form{long}, long, "a secret of theirs", "a secret of theirs", nil, 1},
		{"behind", []apikey.Form{behind}, behind, "secret|2", "17|secret|2", nil, 1},
		{"all forms at once", []apikey.Form{long, behind, whole}, behind, "secret", "17|secret", nil, 3},
		{"another key", []apikey.Form{whole}, whole, "a secret of theirs", "a secret of others", apikey.ErrUnknown, 1},
		{"nothing behind", []apikey.Form{behind}, behind, "", "12345678|", apikey.ErrMalformed, 0},
		{"no such character", []apikey.Form{behind}, behind, "12345678", "12345678", apikey.ErrMalformed, 0},
		{"nothing imported", nil, whole, "a secret of theirs", "a secret of theirs", apikey.ErrMalformed, 0},
		{"another form imported", []apikey.Form{long}, whole, "a secret of theirs", "a secret of theirs", apikey.ErrUnknown, 1},
		{"7 bytes", []apikey.Form{whole}, whole, "1234567", "1234567", apikey.ErrMalformed, 0},
		{"8 bytes", []apikey.Form{whole}, whole, "12345678", "12345678", nil, 1},
		{"512 bytes", []apikey.Form{whole}, whole, strings.Repeat("k", 512), strings.Repeat("k", 512), nil, 1},
		{"513 bytes", []apikey.Form{whole}, whole, strings.Repeat("k", 513), strings.Repeat("k", 513), apikey.ErrMalformed, 0},
		{"a control character", []apikey.Form{whole}, whole, "a\tsecret", "a\tsecret", apikey.ErrMalformed, 0},
		{"beyond ASCII", []apikey.Form{whole}, whole, "ein Schlüssel", "ein Schlüssel", apikey.ErrMalformed, 0},
		{"our form, mistyped", []apikey.Form{whole}, whole, wrong, wrong, apikey.ErrMalformed, 0},
		{"the digest in hex, in place of the key", []apikey.Form{whole}, whole, "a secret of theirs",
			fmt.Sprintf("%x", sha256.Sum256([]byte("a secret of theirs"))), apikey.ErrUnknown, 1},
		{"the bytes of a SHA-512, in place of the key", []apikey.Form{whole, long}, long, "a secret of theirs", string(sum512[:]), apikey.ErrMalformed, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			table := newKeyTable(1)
			imports(table, c.of, c.hashed)
			inRingWithForms(t, table, &formTable{forms: c.forms}, func(t *testing.T, r *ring) {
				for range 3 { // from a look-up, and from memory
					e, err := r.Authenticate(time.Now(), []byte(c.text), new(apikey.LastKey), trusted)
					if !errors.Is(err, c.err) || err == nil && e.Key.ID != number(0) {
						t.Errorf("%+v, %v, want %v", e, err, c.err)
					}
				}
				asked := table.asked()
				if c.err != nil {
					asked = asked[:len(asked)/3]
				}
				if len(asked) != c.asked || c.asked > 0 && table.queryCount() > 3 {
					t.Errorf("%d hashes in %d queries, want %d at once", len(asked), table.queryCount(), c.asked)
				}
			})
		})
	}
}

// Where nothing was imported, made-up texts cost no look-up: one reading of the forms while no key changes, and a
// few a second where changes are not followed, however many come.
func TestTextsWithoutOurFormCostNothingWhereNothingWasImported(t *testing.T) {
	table, forms := newKeyTable(1), &formTable{}
	inRingWithForms(t, table, forms, func(t *testing.T, r *ring) {
		flood := func(seconds int) {
			for n := range seconds * 1000 {
				if _, err := r.Authenticate(time.Now(), fmt.Appendf(nil, "made up: %d", n), new(apikey.LastKey), trusted); !errors.Is(err, apikey.ErrMalformed) {
					t.Fatal(err)
				}
				boottimetest.Pass(time.Millisecond)
			}
		}
		flood(10)
		if reads := forms.set(nil); reads > 26 || reads < 20 {
			t.Errorf("%d readings of the forms in 10 s", reads)
		}
		r.join()
		made := func() { // as many as there are heartbeats
			if _, err := r.Authenticate(time.Now(), []byte("a made-up text"), new(apikey.LastKey), trusted); !errors.Is(err, apikey.ErrMalformed) {
				t.Fatal(err)
			}
		}
		r.provenFor(time.Second, made)
		forms.set(nil)
		r.provenFor(time.Minute, made)
		if reads := forms.set(nil); reads != 0 {
			t.Errorf("%d readings of the forms in a minute while no key changed", reads)
		}
		r.provenFor(10*time.Second, func() { r.changed(number(7)); made() })
		if reads := forms.set(nil); reads > 26 {
			t.Errorf("%d readings of the forms in 10 s while keys changed all the time", reads)
		}
		if n := table.queryCount(); n != 0 {
			t.Errorf("%d queries for keys", n)
		}
	})
}

// While the forms cannot be read, known keys go on working, what is known of forms holds, and a node that has never read
// them says that it does not know.
func TestFormsThatCannotBeRead(t *testing.T) {
	table, forms := newKeyTable(1), &formTable{err: postgres.ErrUnavailable}
	form := apikey.Form{Digest: apikey.SHA256}
	imports(table, form, "their secret")
	inRingWithForms(t, table, forms, func(t *testing.T, r *ring) {
		use := func(text string) error {
			_, err := r.Authenticate(time.Now(), []byte(text), new(apikey.LastKey), trusted)
			return err
		}
		for range 1000 {
			if err := use("their secret"); !errors.Is(err, postgres.ErrUnavailable) {
				t.Fatal(err)
			}
			boottimetest.Pass(time.Millisecond)
		}
		if reads := forms.set(nil, form); reads > 4 {
			t.Errorf("%d attempts in a second", reads)
		}
		boottimetest.Pass(time.Second)
		if err := use("their secret"); err != nil {
			t.Fatal(err)
		}
		forms.set(postgres.ErrUnavailable)
		table.change(func(s *keyTable) { s.err = apikey.ErrNotAsked })
		boottimetest.Pass(10 * time.Second)
		if err := use("their secret"); err != nil {
			t.Errorf("a known key: %v", err)
		}
		if err := use("another secret"); !errors.Is(err, postgres.ErrUnavailable) {
			t.Errorf("a key that may be there: %v", err)
		}
		if err := use("short"); !errors.Is(err, apikey.ErrMalformed) {
			t.Errorf("what is no key: %v", err)
		}
	})
}
