package apikey

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Quota is how many requests a workspace may make in each period. The zero Quota is
// none.
type Quota struct {
	Requests int64
	Period   Period
}

// MaxQuota is the most requests of a quota: a bucket holds no more.
const MaxQuota = 4_000_000_000

// Period is a calendar period in UTC.
type Period uint8

// The periods of quotas.
const (
	Day Period = iota + 1
	Month
)

var periods = [...]string{Day: "day", Month: "month"}

func (p Period) String() string { return periods[p] }

// MarshalText writes the period's name.
func (p Period) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads it.
func (p *Period) UnmarshalText(text []byte) error {
	*p = periodOf(string(text))
	return nil
}

// periodOf reads the column; 0 = no such period.
func periodOf(name string) Period { return Period(max(0, slices.Index(periods[:], name))) }

// InvalidQuota is a quota that cannot be enforced: what it limits is refused.
var InvalidQuota = Quota{Requests: -1}

// QuotaOf reads the two columns. There is no quota if both are NULL. The table has a
// constraint against values that are not valid.
func QuotaOf(requests *int64, period *string) Quota {
	switch {
	case requests == nil && period == nil:
		return Quota{}
	case requests == nil || period == nil || *requests < 1 || periodOf(*period) == 0:
		return InvalidQuota
	}
	return Quota{Requests: min(*requests, MaxQuota), Period: periodOf(*period)}
}

// noQuota is how commands write the zero Quota.
const noQuota = "none"

// UnmarshalText reads a quota as commands have it: 1000000/month, or none.
func (q *Quota) UnmarshalText(text []byte) error {
	number, name, _ := strings.Cut(string(text), "/")
	n, err := strconv.ParseUint(number, 10, 63)
	switch read := (Quota{Requests: int64(n), Period: periodOf(name)}); {
	case string(text) == noQuota:
		*q = Quota{}
	case err == nil && n >= 1 && n <= MaxQuota && read.Period != 0:
		*q = read
	default:
		return fmt.Errorf("%q is not N/day or N/month, with N from 1 to %d, or %s", text, MaxQuota, noQuota)
	}
	return nil
}

func (q Quota) String() string {
	if q.Period == 0 {
		return noQuota
	}
	return strconv.FormatInt(q.Requests, 10) + "/" + q.Period.String()
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
