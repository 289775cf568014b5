package load

import (
	"bytes"
	"fmt"
	"time"

	"github.com/google/uuid"

	"listedge/origin"
)

// appendValue appends the value as it goes to the server, or says why the
// column does not take it.
func appendValue(dst []byte, c *origin.Column, text []byte) ([]byte, string) {
	reason := ""
	switch c.Kind {
	case origin.Text:
		switch {
		case c.Name == "name" && len(text) == 0:
			reason = "must not be empty"
		case len(text) > origin.MaxText:
			reason = fmt.Sprintf("longer than %d bytes", origin.MaxText)
		case c.Name == "type" && string(text) != "GOODS" && string(text) != "SERVICE":
			reason = "neither GOODS nor SERVICE: " + quote(text)
		}
		return appendText(dst, text), reason
	case origin.UUID:
		if _, ok := parseUUID(text); !ok {
			reason = "not a UUID: " + quote(text)
		}
	case origin.Decimal:
		reason = checkDecimal(text)
	case origin.Number:
		switch reason = checkDecimal(text); {
		case reason != "":
		case text[0] == '-' && bytes.ContainsAny(text, "123456789"):
			reason = "must not be negative: " + quote(text)
		case exceeds(text, origin.MaxNumber):
			reason = "more than " + origin.MaxNumber + ", which not every client could read: " + quote(text)
		}
	case origin.Bool:
		switch string(text) {
		case "t", "true", "f", "false":
		default:
			reason = "neither true nor false: " + quote(text)
		}
	case origin.Instant:
		var t time.Time
		if t, reason = parseInstant(text); reason == "" {
			return appendInstant(dst, t), ""
		}
	default:
		panic(fmt.Sprintf("BUG: column of kind %d", c.Kind))
	}
	return append(dst, text...), reason
}

// parseUUID takes the form with hyphens and no other, in either case.
func parseUUID(text []byte) (uuid.UUID, bool) {
	if len(text) != 36 {
		return uuid.UUID{}, false
	}
	id, err := uuid.ParseBytes(text)
	return id, err == nil
}

// checkDecimal says what keeps the text from being a decimal number as the API
// shows it, that is -?(0|[1-9][0-9]*)(\.[0-9]+)?, that the schema takes.
func checkDecimal(text []byte) string {
	whole, fraction, point := bytes.Cut(bytes.TrimPrefix(text, []byte{'-'}), []byte{'.'})
	switch {
	case !allDigits(whole) || len(whole) > 1 && whole[0] == '0' || point && !allDigits(fraction):
		return "not a decimal number: " + quote(text)
	case len(whole) > origin.MaxDigits:
		return fmt.Sprintf("more than %d digits before the point", origin.MaxDigits)
	case len(fraction) > origin.MaxDigits:
		return fmt.Sprintf("more than %d digits after the point", origin.MaxDigits)
	}
	return ""
}

// exceeds says whether a decimal number is above a whole one, which is positive.
func exceeds(text []byte, most string) bool {
	whole, fraction, _ := bytes.Cut(text, []byte{'.'})
	switch {
	case text[0] == '-' || len(whole) < len(most):
		return false
	case len(whole) > len(most):
		return true
	case string(whole) == most:
		return bytes.ContainsAny(fraction, "123456789")
	}
	return string(whole) > most
}

// allDigits also wants at least one.
func allDigits(text []byte) bool {
	for _, c := range text {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(text) > 0
}

// parseInstant reads RFC 3339, of which the API shows UTC and milliseconds: a
// finer instant could not be shown and is refused, not rounded. It is stricter
// than time.Parse, which lets commas and single digits pass.
func parseInstant(text []byte) (t time.Time, reason string) {
	const shape = "0000-00-00T00:00:00"
	bad := "not an instant (RFC 3339): " + quote(text)
	if len(text) < len(shape)+1 {
		return t, bad
	}
	for i, want := range []byte(shape) {
		if got := text[i]; want == '0' && (got < '0' || got > '9') || want == 'T' && got != 'T' && got != 't' ||
			want != '0' && want != 'T' && got != want {
			return t, bad
		}
	}
	two := func(at int) int { return int(text[at]-'0')*10 + int(text[at+1]-'0') }
	year, month, day := two(0)*100+two(2), time.Month(two(5)), two(8)
	hour, minute, second := two(11), two(14), two(17)

	rest, milliseconds := text[len(shape):], 0
	if rest[0] == '.' {
		digits := 1
		for digits < len(rest) && rest[digits] >= '0' && rest[digits] <= '9' {
			digits++
		}
		fraction := rest[1:digits]
		rest = rest[digits:]
		if len(fraction) == 0 {
			return t, bad
		}
		for i := range 3 {
			milliseconds *= 10
			if i < len(fraction) {
				milliseconds += int(fraction[i] - '0')
			}
		}
		if len(fraction) > 3 && bytes.ContainsAny(fraction[3:], "123456789") {
			return t, "finer than a millisecond: " + quote(text)
		}
	}
	zone, ok := parseZone(rest)
	if !ok || hour > 23 || minute > 59 || second > 59 {
		return t, bad
	}
	t = time.Date(year, month, day, hour, minute, second, milliseconds*1e6, time.UTC)
	if t.Month() != month || t.Day() != day { // as 30 February
		return t, bad
	}
	if t = t.Add(-zone); t.Year() < 1 || t.Year() > 9999 {
		return t, "outside the years 0001 to 9999: " + quote(text)
	}
	return t, ""
}

// parseZone reads Z or ±hh:mm.
func parseZone(text []byte) (zone time.Duration, ok bool) {
	if len(text) == 1 && (text[0] == 'Z' || text[0] == 'z') {
		return 0, true
	}
	if len(text) != 6 || text[0] != '+' && text[0] != '-' || text[3] != ':' || !allDigits(text[1:3]) || !allDigits(text[4:]) {
		return 0, false
	}
	hours, minutes := int(text[1]-'0')*10+int(text[2]-'0'), int(text[4]-'0')*10+int(text[5]-'0')
	zone = time.Duration(hours)*time.Hour + time.Duration(minutes)*time.Minute
	if text[0] == '-' {
		zone = -zone
	}
	return zone, hours < 24 && minutes < 60
}

// appendInstant appends the form every DateStyle of the server reads alike.
func appendInstant(dst []byte, t time.Time) []byte {
	return t.AppendFormat(dst, "2006-01-02T15:04:05.000Z")
}
