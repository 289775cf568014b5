package apikey_test

import (
	"crypto/sha256"
	"math"
	"strings"
	"testing"
	"time"

	"listedge/origin/apikey"
)

func TestKeysAreWhatTheContractSays(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		key := apikey.Generate()
		hash, ok := apikey.HashOf([]byte(key))
		if !ok || hash != sha256.Sum256([]byte(key)) {
			t.Fatalf("%s: %x, %v", key, hash, ok)
		}
		if len(key) != 43 || !strings.HasPrefix(key, "lk_") || strings.Trim(key[3:], apikey.Base62) != "" || seen[key] {
			t.Fatalf("%s", key)
		}
		seen[key] = true
	}
}

// The checksum ends every slip of the pen before any look-up.
func TestAMistypedKeyIsNoKey(t *testing.T) {
	for range 20 {
		key := apikey.Generate()
		refused := func(mistyped string) {
			t.Helper()
			if _, ok := apikey.HashOf([]byte(mistyped)); ok && mistyped != key {
				t.Errorf("%q instead of %s", mistyped, key)
			}
		}
		for i := range key {
			for c := range 256 {
				refused(key[:i] + string([]byte{byte(c)}) + key[i+1:])
			}
			refused(key[:i])
			refused(key[i:])
			refused(key[:i] + key[i+1:])
			refused(key[:i] + "0" + key[i:])
			if i > 0 {
				refused(key[:i-1] + key[i:i+1] + key[i-1:i] + key[i+1:]) // neighbours swapped
			}
		}
		for _, wrong := range []string{"", "lk_", key + "0", key + " ", " " + key, key + "\n", "\x00" + key[1:], strings.ToUpper(key), strings.ToLower(key),
			"Bearer " + key} {
			refused(wrong)
		}
	}
}

// A key written down once: what is stored depends on none of this changing.
func TestTheFormOfKeysDoesNotChange(t *testing.T) {
	random := strings.Repeat("0", apikey.KeyRandom)
	sum := apikey.KeyChecksum([]byte(random))
	if string(sum[:]) != "0iqUEf" {
		t.Errorf("the checksum of %s is %s", random, sum)
	}
	if _, ok := apikey.HashOf([]byte("lk_" + random + string(sum[:]))); !ok {
		t.Error("a key of zeros is a key")
	}
}

func TestAKeyIsValidUntilItIsRevokedOrExpires(t *testing.T) {
	now := time.UnixMicro(1_000_000)
	for _, c := range []struct {
		key   apikey.Key
		valid bool
	}{
		{apikey.Key{}, true}, {apikey.Key{Suspended: true}, true}, {apikey.Key{Revoked: true}, false}, {apikey.Key{Revoked: true, ExpiresAt: 2_000_000}, false},
		{apikey.Key{ExpiresAt: 1_000_001}, true}, {apikey.Key{ExpiresAt: 1_000_000}, false}, {apikey.Key{ExpiresAt: 1}, false}, {apikey.Key{ExpiresAt: -1}, false},
	} {
		if c.key.Valid(now) != c.valid {
			t.Errorf("%+v", c.key)
		}
	}
}

func TestLimitsOfRows(t *testing.T) {
	rate, burst := func(f float64) *float64 { return &f }, func(n int32) *int32 { return &n }
	for _, c := range []struct {
		rate    *float64
		burst   *int32
		missing apikey.Limit
		want    apikey.Limit
	}{
		{nil, nil, apikey.DefaultLimit, apikey.Limit{Set: true, Rate: 50, Burst: 100}}, {nil, burst(7), apikey.DefaultLimit, apikey.Limit{Set: true, Rate: 50, Burst: 7}},
		{rate(10), nil, apikey.DefaultLimit, apikey.Limit{Set: true, Rate: 10, Burst: 20}}, {rate(10), burst(3), apikey.DefaultLimit, apikey.Limit{Set: true, Rate: 10, Burst: 3}},
		{rate(0.1), nil, apikey.DefaultLimit, apikey.Limit{Set: true, Rate: 0.1, Burst: 1}}, {rate(0), nil, apikey.DefaultLimit, apikey.Limit{Set: true, Rate: 0, Burst: 1}},
		{rate(1e300), nil, apikey.DefaultLimit, apikey.Limit{Set: true, Rate: 1e300, Burst: math.MaxInt32}},
		{nil, nil, apikey.Limit{}, apikey.Limit{}}, {nil, burst(7), apikey.Limit{}, apikey.Limit{}}, {rate(2.5), burst(9), apikey.Limit{}, apikey.Limit{Set: true, Rate: 2.5, Burst: 9}},
	} {
		if got := apikey.LimitOf(c.rate, c.burst, c.missing); got != c.want {
			t.Errorf("%+v, want %+v", got, c.want)
		}
	}
}
