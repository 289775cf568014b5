package list

import (
	"bytes"
	"fmt"
	"math"
	"time"
)

// The instants that Postgres has besides the infinities, in microseconds and, of a date, in days since
// 2000-01-01.
const (
	minTimestamp = -211813488000000000
	endTimestamp = 9223371331200000000
	minDate      = -2451545
	endDate      = 2145031949
	dayLength    = 86400_000000
	epoch        = 946684800 // 2000-01-01, in seconds since 1970
)

// readInstant reads microseconds since 2000-01-01; of a date, days. The infinities are the extremes of int64.
// shown is false for these and outside of the years 0001 to 9999. It reads endTimestamp, too: timestamptz(3) rounds to it.
func readInstant(kind kind, v []byte) (at int64, shown, ok bool) {
	switch string(v) {
	case "infinity":
		return math.MaxInt64, false, true
	case "-infinity":
		return math.MinInt64, false, true
	}
	v, bc := bytes.CutSuffix(v, []byte(" BC"))
	n, year := digits(v), 0
	if n < 4 || n > 7 || len(v) < n+len("-01-02") || v[n] != '-' || v[n+3] != '-' {
		return 0, false, false
	}
	for _, c := range v[:n] {
		year = 10*year + int(c-'0')
	}
	shown = n == 4 && !bc
	if bc {
		year = 1 - year
	}
	month, day := two(v[n+1:]), two(v[n+4:])
	if month < 1 || month > 12 || day < 1 || day > 31 {
		return 0, false, false
	}
	days := daysOf(year, month, day)
	v = v[n+len("-01-02"):]
	if kind == kindDate {
		return days, shown, len(v) == 0 && hasInstant(kind, days)
	}
	if kind == kindTimestamptz {
		v, ok = bytes.CutSuffix(v, []byte("+00"))
		if !ok {
			return 0, false, false
		}
	}
	of, ok := timeOfDay(v)
	at = days*dayLength + of
	return at, shown, ok && days >= minTimestamp/dayLength && days <= endTimestamp/dayLength && at <= endTimestamp
}

// hasInstant reports whether a type of the kind has the instant.
func hasInstant(kind kind, at int64) bool {
	least, end := int64(minTimestamp), int64(endTimestamp)
	if kind == kindDate {
		least, end = minDate, endDate
	}
	return at >= least && at < end || at == math.MinInt64 || at == math.MaxInt64
}

// timeOfDay reads " 15:04:05" with up to six decimals, in microseconds.
func timeOfDay(v []byte) (of int64, ok bool) {
	if len(v) < len(" 15:04:05") || v[0] != ' ' || v[3] != ':' || v[6] != ':' {
		return 0, false
	}
	hour, minute, second := two(v[1:]), two(v[4:]), two(v[7:])
	if hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59 {
		return 0, false
	}
	of, v = int64(hour*3600+minute*60+second), v[len(" 15:04:05"):]
	if len(v) > 0 && (v[0] != '.' || len(v) == 1 || len(v) > 7 || digits(v[1:]) != len(v)-1) {
		return 0, false
	}
	for i := 1; i <= 6; i++ {
		of *= 10
		if i < len(v) {
			of += int64(v[i] - '0')
		}
	}
	return of, true
}

// two reads two digits; -1 = there are others.
func two(v []byte) int {
	a, b := v[0]-'0', v[1]-'0'
	if a > 9 || b > 9 {
		return -1
	}
	return int(10*a + b)
}

// daysOf returns a day in days since 2000-01-01. The year 0 is that before 0001.
func daysOf(year, month, day int) int64 {
	return (time.Date(year, time.Month(month), day, 0, 0, 0, 0, time.UTC).Unix() - epoch) / 86400
}

// instantText is the inverse of readInstant.
func instantText(kind kind, at int64) string {
	switch at {
	case math.MaxInt64:
		return "infinity"
	case math.MinInt64:
		return "-infinity"
	}
	since := time.Unix(epoch+at/1_000000, at%1_000000*1000).UTC()
	layout := "01-02 15:04:05.000000"
	if kind == kindDate {
		since, layout = time.Unix(epoch+at*86400, 0).UTC(), "01-02"
	}
	year, zone, era := since.Year(), "", ""
	if kind == kindTimestamptz {
		zone = "+00"
	}
	if year < 1 {
		year, era = 1-year, " BC"
	}
	return fmt.Sprintf("%04d-%s%s%s", year, since.Format(layout), zone, era)
}
