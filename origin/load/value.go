package load

import (
	"bytes"
	"fmt"
	"regexp"
	"time"

	"github.com/google/uuid"

	"listedge/origin"
)

// appendValue appends the value in COPY's text format. If the column cannot have that
// value, it returns the reason.
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

// parseUUID accepts only the form with hyphens, in either case.
func parseUUID(text []byte) (uuid.UUID, bool) {
	if len(text) != 36 {
		return uuid.UUID{}, false
	}
	id, err := uuid.ParseBytes(text)
	return id, err == nil
}

// checkDecimal returns why the text is not a decimal number, or has too many digits for
// the schema. A decimal number is -?(0|[1-9][0-9]*)(\.[0-9]+)?.
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

// exceeds says whether a decimal number is larger than limit, a positive whole number.
func exceeds(text []byte, limit string) bool {
	whole, fraction, _ := bytes.Cut(text, []byte{'.'})
	switch {
	case text[0] == '-' || len(whole) < len(limit):
		return false
	case len(whole) > len(limit):
		return true
	case string(whole) == limit:
		return bytes.ContainsAny(fraction, "123456789")
	}
	return string(whole) > limit
}

// allDigits says whether the text is one digit or more.
func allDigits(text []byte) bool {
	for _, c := range text {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(text) > 0
}

// instant is RFC 3339. It is stricter than time.Parse, which accepts commas and
// single digits.
var instant = regexp.MustCompile(`^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d{1,3}(\d*))?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)$`)

// parseInstant reads an instant. The API shows milliseconds, so a finer instant is
// refused and not rounded.
func parseInstant(text []byte) (t time.Time, reason string) {
	parts := instant.FindSubmatch(text)
	t, err := time.Parse(time.RFC3339, string(bytes.ToUpper(text)))
	t = t.UTC()
	switch {
	case parts == nil || err != nil: // err for dates that do not exist, as 30 February
		return t, "not an instant (RFC 3339): " + quote(text)
	case bytes.ContainsAny(parts[1], "123456789"):
		return t, "finer than a millisecond: " + quote(text)
	case t.Year() < 1 || t.Year() > 9999:
		return t, "outside the years 0001 to 9999: " + quote(text)
	}
	return t, ""
}

// appendInstant appends an instant in a form that the server reads in the same way whatever
// its DateStyle is.
func appendInstant(dst []byte, t time.Time) []byte {
	return t.AppendFormat(dst, "2006-01-02T15:04:05.000Z")
}
