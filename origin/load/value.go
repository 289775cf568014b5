package load

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"listedge/internal/lists"
	"listedge/origin"
)

var (
	uuidText     = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	maxNumber, _ = strconv.ParseFloat(origin.MaxNumber, 64)
	decimalText  = regexp.MustCompile(`^-?(0|[1-9]\d{0,999})(\.\d{1,1000})?$`) // origin.MaxDigits
)

// checkValue returns a value as Postgres reads it, or why the column cannot have it. Empty is null.
// It refuses, and does not round, instants that are finer than the milliseconds of the API.
func checkValue(c *lists.Column, text string) (value any, reason string) {
	if text == "" && c.Nullable {
		return nil, ""
	}
	switch n, _ := strconv.ParseFloat(text, 64); {
	case text == "":
		return nil, "must not be empty"
	case strings.IndexByte(text, 0) >= 0:
		return nil, "has a NUL character"
	case !utf8.ValidString(text):
		return nil, "is not UTF-8"
	case len(text) > origin.MaxText:
		return nil, fmt.Sprintf("longer than %d bytes", origin.MaxText)
	case c.Name == "type" && text != "GOODS" && text != "SERVICE":
		reason = "neither GOODS nor SERVICE"
	case c.Kind == lists.UUID && !uuidText.MatchString(text):
		reason = "not a UUID, as 3f0b8a52-5f0e-4c8e-9d0a-2f6f1c1f8a11"
	case c.Kind == lists.Bool && !slices.Contains([]string{"t", "true", "f", "false"}, text):
		reason = "neither true nor false"
	case (c.Kind == lists.Decimal || c.Kind == lists.Number) && !decimalText.MatchString(text):
		reason = fmt.Sprintf("not a decimal number of at most %d digits before and after the point", origin.MaxDigits)
	case c.Kind == lists.Number && n < 0:
		reason = "must not be negative"
	case c.Kind == lists.Number && n > maxNumber:
		reason = "more than " + origin.MaxNumber + ", which not every client could read"
	case c.Kind != lists.Instant:
		return text, ""
	default:
		switch at, err := time.Parse(time.RFC3339, strings.ToUpper(text)); {
		case err != nil:
			reason = "not an instant, as 2026-01-02T03:04:05Z"
		case !at.Equal(at.Truncate(time.Millisecond)):
			reason = "finer than a millisecond"
		case at.UTC().Year() < 1 || at.UTC().Year() > 9999:
			reason = "outside the years 0001 to 9999"
		default:
			return at.UTC().Format("2006-01-02T15:04:05.000Z"), ""
		}
	}
	return nil, reason + ": " + quote(text)
}

// quote returns a value in quotes, for the reason of a fault. It cuts a long value.
func quote(text string) string {
	if len(text) > 60 {
		return strconv.Quote(strings.ToValidUTF8(text[:60], "")) + "…"
	}
	return strconv.Quote(text)
}
