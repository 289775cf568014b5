package apikey_test

import (
	"testing"
	"time"

	"listedge/origin/apikey"
)

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
