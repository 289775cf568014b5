package apikey_test

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"

	"listedge/origin/apikey"
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
