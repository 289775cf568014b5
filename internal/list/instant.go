package list

import (
	"bytes"
	"math"
	"strconv"
)

// The instants that Postgres has besides the infinities, in microseconds and, of a date, in days since
// 2000-01-01.
const (
	minTimestamp = -211813488000000000
	endTimestamp = 9223371331200000000
	minDate      = -2451545
	endDate      = 2145031949
	dayLength    = 86400_000000
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

// eraDays is how many days 400 years have; from March 1 of a year divisible by 400 on they are always the
// same.
const (
	eraDays  = 146097
	eraStart = 730425 // days from 0000-03-01 to 2000-01-01
)

// daysOf returns a day in days since 2000-01-01. The year 0 is that before 0001.
func daysOf(year, month, day int) int64 {
	if month <= 2 {
		year--
		month += 12
	}
	era := year / 400
	if year < 0 {
		era = (year - 399) / 400
	}
	year -= 400 * era // 0-399
	return int64(era*eraDays + year*365 + year/4 - year/100 + (153*(month-3)+2)/5 + day - 1 - eraStart)
}

// dayOf is the inverse of daysOf.
func dayOf(days int64) (year, month, day int) {
	days += eraStart
	era := days / eraDays
	if days < 0 {
		era = (days - eraDays + 1) / eraDays
	}
	of := int(days - era*eraDays)
	year = (of - of/1460 + of/36524 - of/(eraDays-1)) / 365
	of -= 365*year + year/4 - year/100 // day of the year, from March 1 on
	month = (5*of + 2) / 153
	day = of - (153*month+2)/5 + 1
	year += int(era) * 400
	if month < 10 {
		return year, month + 3, day
	}
	return year + 1, month - 9, day
}

// instantText is the inverse of readInstant.
func instantText(kind kind, at int64) string {
	switch at {
	case math.MaxInt64:
		return "infinity"
	case math.MinInt64:
		return "-infinity"
	}
	days, of := at, int64(-1)
	if kind != kindDate {
		of = at % dayLength
		if of < 0 {
			of += dayLength
		}
		days = (at - of) / dayLength
	}
	year, month, day := dayOf(days)
	bc := year < 1
	if bc {
		year = 1 - year
	}
	b := appendPadded(nil, int64(year), 4)
	b = appendPadded(append(b, '-'), int64(month), 2)
	b = appendPadded(append(b, '-'), int64(day), 2)
	if of >= 0 {
		b = appendPadded(append(b, ' '), of/3600_000000, 2)
		b = appendPadded(append(b, ':'), of/60_000000%60, 2)
		b = appendPadded(append(b, ':'), of/1_000000%60, 2)
		b = appendPadded(append(b, '.'), of%1_000000, 6)
	}
	if kind == kindTimestamptz {
		b = append(b, "+00"...)
	}
	if bc {
		b = append(b, " BC"...)
	}
	return string(b)
}

// appendPadded appends a number with at least so many digits.
func appendPadded(dst []byte, n int64, width int) []byte {
	text := strconv.FormatInt(n, 10)
	for range width - len(text) {
		dst = append(dst, '0')
	}
	return append(dst, text...)
}
