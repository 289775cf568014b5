package apikey

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Quota is how many requests a workspace may make in each period. The zero Quota is
// none.
type Quota struct {
	Requests int64  `json:"requests"`
	Period   Period `json:"period"`
}

// QuotaSQL selects the quota of a row of workspaces as UnmarshalText reads it; NULL = none. The
// table's constraint has the same bounds: a table that lacks it may have what is no quota.
const QuotaSQL = `CASE WHEN quota BETWEEN 1 AND 4000000000 AND quota_period IN ('day', 'month') THEN quota || '/' || quota_period END`

// MaxQuota is the most requests of a quota: a bucket holds no more.
const MaxQuota = 4_000_000_000

// Period is the name of a calendar period in UTC; empty = none.
type Period string

// The periods of quotas.
const (
	Day   Period = "day"
	Month Period = "month"
)

// noQuota is how commands write the zero Quota.
const noQuota = "none"

// UnmarshalText reads a quota as commands have it: 1000000/month, or none.
func (q *Quota) UnmarshalText(text []byte) error {
	number, name, _ := strings.Cut(string(text), "/")
	n, err := strconv.ParseUint(number, 10, 63)
	switch period := Period(name); {
	case string(text) == noQuota:
		*q = Quota{}
	case err == nil && n >= 1 && n <= MaxQuota && (period == Day || period == Month):
		*q = Quota{Requests: int64(n), Period: period}
	default:
		return fmt.Errorf("%q is not N/day or N/month, with N from 1 to %d, or %s", text, MaxQuota, noQuota)
	}
	return nil
}

// Bounds returns the name of the period that contains a moment, its begin and its end.
func (p Period) Bounds(now time.Time) (name string, begin, end time.Time) {
	year, month, day := now.UTC().Date()
	if p == Day {
		begin = time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
		return begin.Format(time.DateOnly), begin, begin.AddDate(0, 0, 1)
	}
	begin = time.Date(year, month, 1, 0, 0, 0, 0, time.UTC)
	return begin.Format("2006-01"), begin, begin.AddDate(0, 1, 0)
}
