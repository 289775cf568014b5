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
	if _, ok := apikey.HashOf([]byte("lk_" + strings.Repeat("0", 34) + "0iqUEf")); !ok {
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
		{nil, nil, apikey.DefaultLimit, apikey.Limit{Set: true, Rate: 50, Burst: 100}}, {nil, burst(7), apikey.DefaultLimit, apikey.Limit{Set: true, Rate: 50,
			Burst: 7}},
		{rate(10), nil, apikey.DefaultLimit, apikey.Limit{Set: true, Rate: 10, Burst: 20}}, {rate(10), burst(3), apikey.DefaultLimit, apikey.Limit{Set: true,
			Rate: 10, Burst: 3}},
		{rate(0.1), nil, apikey.DefaultLimit, apikey.Limit{Set: true, Rate: 0.1, Burst: 1}}, {rate(0), nil, apikey.DefaultLimit, apikey.Limit{Set: true,
			Rate: 0, Burst: 1}},
		{rate(1e300), nil, apikey.DefaultLimit, apikey.Limit{Set: true, Rate: 1e300, Burst: math.MaxInt32}},
		{nil, nil, apikey.Limit{}, apikey.Limit{}}, {nil, burst(7), apikey.Limit{}, apikey.Limit{}}, {rate(2.5), burst(9), apikey.Limit{},
			apikey.Limit{Set: true, Rate: 2.5, Burst: 9}},
	} {
		if got := apikey.LimitOf(c.rate, c.burst, c.missing); got != c.want {
			t.Errorf("%+v, want %+v", got, c.want)
		}
	}
}

func TestPeriods(t *testing.T) {
	for _, c := range []struct {
		period                apikey.Period
		now, name, begin, end string
	}{
		{apikey.Day, "2026-11-22T00:00:00Z", "2026-11-22", "2026-11-22T00:00:00Z", "2026-11-23T00:00:00Z"},
		{apikey.Day, "2026-12-31T23:59:59.999999Z", "2026-12-31", "2026-12-31T00:00:00Z", "2027-01-01T00:00:00Z"},
		{apikey.Day, "2026-03-29T01:30:00+02:00", "2026-03-28", "2026-03-28T00:00:00Z", "2026-03-29T00:00:00Z"}, // UTC, and no summer time
		{apikey.Month, "2026-11-30T23:59:59Z", "2026-11", "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"},
		{apikey.Month, "2027-01-01T00:30:00+01:00", "2026-12", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{apikey.Month, "2028-02-29T12:00:00Z", "2028-02", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"},
	} {
		now := must1(time.Parse(time.RFC3339, c.now))
		name, begin, end := c.period.Bounds(now)
		if name != c.name || begin.Format(time.RFC3339) != c.begin || end.Format(time.RFC3339) != c.end {
			t.Errorf("%v of %s: %s from %v to %v", c.period, c.now, name, begin, end)
		}
	}
}

func TestQuotaFromText(t *testing.T) {
	for text, want := range map[string]apikey.Quota{
		"none":            {},
		"+5/day":          {},
		"1000000/month":   {Requests: 1_000_000, Period: apikey.Month},
		"1/day":           {Requests: 1, Period: apikey.Day},
		"4000000000/day":  {Requests: apikey.MaxQuota, Period: apikey.Day},
		"4000000001/day":  {},
		"0/day":           {},
		"-1/day":          {},
		"1.5/day":         {},
		"1000":            {},
		"/day":            {},
		"1000/":           {},
		"1000/week":       {},
		"1000/Day":        {},
		"1000/day ":       {},
		"":                {},
		"1e6/month":       {},
		"1000/month/year": {},
	} {
		var got apikey.Quota
		err := got.UnmarshalText([]byte(text))
		if got != want || (err == nil) != (want != apikey.Quota{} || text == "none") {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}
