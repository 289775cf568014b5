package load

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"listedge/internal/lists"
	"listedge/origin"
)

var (
	uuidText    = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	decimalText = regexp.MustCompile(`^-?(0|[1-9]\d{0,999})(\.\d{1,1000})?$`) // origin.MaxDigits
)

// checkValue returns a value as Postgres reads it, or why the column cannot have it. Empty is null.
func checkValue(c *lists.Column, text string) (value, reason string) {
	switch {
	case text == "" && c.Nullable:
		return "", ""
	case text == "":
		return "", "must not be empty"
	case strings.IndexByte(text, 0) >= 0:
		return "", "has a NUL character"
	case !utf8.ValidString(text):
		return "", "is not UTF-8"
	}
	switch c.Kind {
	case lists.Text:
		switch {
		case len(text) > origin.MaxText:
			reason = fmt.Sprintf("longer than %d bytes", origin.MaxText)
		case c.Name == "type" && text != "GOODS" && text != "SERVICE":
			reason = "neither GOODS nor SERVICE: " + quote(text)
		}
	case lists.UUID:
		if !uuidText.MatchString(text) {
			reason = "not a UUID, as 3f0b8a52-5f0e-4c8e-9d0a-2f6f1c1f8a11: " + quote(text)
		}
		return strings.ToLower(text), reason
	case lists.Decimal, lists.Number:
		reason = checkNumber(c.Kind, text)
	case lists.Bool:
		if text != "t" && text != "true" && text != "f" && text != "false" {
			reason = "neither true nor false: " + quote(text)
		}
	case lists.Instant:
		return checkInstant(text)
	}
	return text, reason
}

func checkNumber(kind lists.Kind, text string) string {
	if !decimalText.MatchString(text) {
		return fmt.Sprintf("not a decimal number of at most %d digits before and after the point: %s", origin.MaxDigits, quote(text))
	}
	n, _ := strconv.ParseFloat(text, 64)
	switch {
	case kind == lists.Number && n < 0:
		return "must not be negative: " + quote(text)
	case kind == lists.Number && n > maxNumber:
		return "more than " + origin.MaxNumber + ", which not every client could read: " + quote(text)
	}
	return ""
}

var maxNumber, _ = strconv.ParseFloat(origin.MaxNumber, 64)

// checkInstant refuses, and does not round, what is finer than the milliseconds of the API.
func checkInstant(text string) (value, reason string) {
	t, err := time.Parse(time.RFC3339, strings.ToUpper(text))
	t = t.UTC()
	switch {
	case err != nil:
		return "", "not an instant, as 2026-01-02T03:04:05Z: " + quote(text)
	case !t.Equal(t.Truncate(time.Millisecond)):
		return "", "finer than a millisecond: " + quote(text)
	case t.Year() < 1 || t.Year() > 9999:
		return "", "outside the years 0001 to 9999: " + quote(text)
	}
	return t.Format("2006-01-02T15:04:05.000Z"), ""
}
