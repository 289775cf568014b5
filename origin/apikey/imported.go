package apikey

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	"listedge/internal/boottime"
	"listedge/internal/list"
	"listedge/origin/postgres"
)

// A key of another maker is known by its hash alone (`keys import`). Its text has no
// checksum, so only a look-up tells it from a made-up one. FormsTable grows only, so a node that knows its
// rows of a while ago misses forms at most. From these it
// knows which hashes a text may have; where nothing was imported, it looks none up.
const (
	minImported, maxImported = 8, 512 // bytes of such a text

	// MaxForms is how many forms an import lets there be: a look-up asks for one hash of each.
	MaxForms = 8
	// ImportedPrefix is stored in the place of a key's first characters, which nobody knows.
	ImportedPrefix = "(imported)"
)

// Digest is the name of a hash function by which others store keys.
type Digest string

// The digests of imported keys. Of a SHA-512 its SHA-256 is stored.
const (
	SHA256 Digest = "sha256"
	SHA512 Digest = "sha512"
)

// size is how many bytes the digest has.
func (d Digest) size() int {
	if d == SHA512 {
		return sha512.Size
	}
	return sha256.Size
}

// of returns the digest of a text.
func (d Digest) of(text []byte) []byte {
	if d == SHA512 {
		sum := sha512.Sum512(text)
		return sum[:]
	}
	sum := sha256.Sum256(text)
	return sum[:]
}

// stored returns the hash by which a key with this digest is stored. Who knows a SHA-512 cannot send its bytes as
// a key of SHA-256: 64 random bytes are not printable.
func (d Digest) stored(digest []byte) (h Hash) {
	if d == SHA512 {
		return sha256.Sum256(digest)
	}
	copy(h[:], digest)
	return h
}

// Parse reads a digest in hex, or in base64 of either alphabet, padded or not, and returns the hash by
// which the key is stored. The error says what is wrong with the text.
func (d Digest) Parse(text string) (Hash, error) {
	var digest []byte
	var err error
	if len(text) == 2*d.size() {
		digest, err = hex.DecodeString(text)
	} else {
		digest, err = base64.RawStdEncoding.Strict().DecodeString(strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(text, "=")))
	}
	switch {
	case err != nil:
		return Hash{}, fmt.Errorf("the hash is neither hex nor base64 of %d bytes", d.size())
	case len(digest) != d.size():
		return Hash{}, fmt.Errorf("the hash has %d bytes, and a %s has %d", len(digest), d, d.size())
	case bytes.Equal(digest, d.of(nil)):
		return Hash{}, fmt.Errorf("it is the hash of an empty text, which anybody could send")
	}
	return d.stored(digest), nil
}

// FormsTable has the forms of all keys that were ever imported.
var FormsTable = list.Name{Schema: postgres.Schema, Table: "listedge_key_forms"}

// Form is how the hash of a key is made of its text.
type Form struct {
	Digest Digest
	Behind string // a character: the digest is of what follows the first one; empty = of all
}

// hash returns the stored hash of a text, if it may be a key of this form.
func (f Form) hash(text []byte) (h Hash, ok bool) {
	if f.Behind != "" {
		_, text, _ = bytes.Cut(text, []byte(f.Behind))
	}
	return f.Digest.stored(f.Digest.of(text)), len(text) > 0
}

// mayBeImported says whether a text that is no key of ours can be one of another maker: of printable ASCII, and
// not our form with a wrong checksum.
func mayBeImported(text []byte) bool {
	ours := len(text) == keyLength && string(text[:len(keyPrefix)]) == keyPrefix
	return !ours && len(text) >= minImported && len(text) <= maxImported &&
		!slices.ContainsFunc(text, func(c byte) bool { return c < ' ' || c > '~' })
}

// Forms reads the forms of the keys that were ever imported. startedAt is the run of the server that answers; run
// is the one that must, as of a Lookup.
type Forms func(ctx context.Context, run string) (forms []Form, startedAt string, err error)

// imports are the forms as this node knows them.
//
// Invariant: where changes are followed, no statement reads them again while no key changes; elsewhere, and
// while keys change, a node reads them at most every refreshEvery, whatever is sent to it.
type imports struct {
	read    Forms // nil = there are none
	clock   *boottime.Clock
	known   atomic.Pointer[knownForms] // nil = not read yet
	mu      sync.Mutex                 // held while they are read: the others wait for the result
	failed  error                      // of the last reading
	endedAt time.Duration              // when it ended
}

// knownForms are the forms at a moment. Later there may be more, and never fewer.
type knownForms struct {
	forms []Form
	at    time.Duration         // when their reading began
	run   unique.Handle[string] // of the server
}

// hashes appends the hashes that the text may have.
func (k *knownForms) hashes(text []byte, to []Hash) []Hash {
	if k == nil {
		return to
	}
	for _, f := range k.forms {
		if h, ok := f.hash(text); ok {
			to = append(to, h)
		}
	}
	return to
}

// ofNow returns the forms as they were at most refreshEvery ago, or as long ago as hold says, or, if they
// cannot be read, as they were last. run returns the run of the server that must answer.
func (i *imports) ofNow(ctx context.Context, hold func(*knownForms) bool, run func() string) (*knownForms, error) {
	now := func(k *knownForms) bool { return k != nil && (i.clock.Now()-k.at <= refreshEvery || hold(k)) }
	if known := i.known.Load(); now(known) {
		return known, nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	known, began := i.known.Load(), i.clock.Now()
	if !now(known) && (i.failed == nil || began-i.endedAt > refreshEvery) {
		ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		defer cancel()
		forms, startedAt, err := i.read(ctx, run())
		if err == nil {
			known = &knownForms{forms, began, unique.Make(startedAt)}
			i.known.Store(known)
		}
		i.failed, i.endedAt = err, i.clock.Now()
	}
	if known == nil {
		return nil, i.failed
	}
	return known, nil
}
