package load

import (
	"fmt"
	"math/big"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"listedge/origin"
)

// parseValue returns the value as COPY sends it. If the column cannot have that value, it
// returns the reason.
func parseValue(c *origin.Column, text string) (value any, reason string) {
	switch c.Kind {
	case origin.Text:
		switch {
		case c.Name == "name" && text == "":
			reason = "must not be empty"
		case len(text) > origin.MaxText:
			reason = fmt.Sprintf("longer than %d bytes", origin.MaxText)
		case c.Name == "type" && text != "GOODS" && text != "SERVICE":
			reason = "neither GOODS nor SERVICE: " + quote(text)
		}
		return text, reason
	case origin.UUID:
		id, err := uuid.Parse(text)
		if err != nil || len(text) != len(uuid.Nil.String()) { // uuid.Parse also accepts other forms
			reason = "not a UUID: " + quote(text)
		}
		return id, reason
	case origin.Decimal:
		return parseDecimal(text)
	case origin.Number:
		n, reason := parseDecimal(text)
		if reason != "" {
			return n, reason
		}
		exact, _ := new(big.Rat).SetString(text)
		switch {
		case exact.Sign() < 0:
			reason = "must not be negative: " + quote(text)
		case exact.Cmp(maxNumber) > 0:
			reason = "more than " + origin.MaxNumber + ", which not every client could read: " + quote(text)
		}
		return n, reason
	case origin.Bool:
		switch text {
		case "t", "true", "f", "false":
		default:
			reason = "neither true nor false: " + quote(text)
		}
		return text == "t" || text == "true", reason
	case origin.Instant:
		return parseInstant(text)
	}
	panic(fmt.Sprintf("BUG: column of kind %d", c.Kind))
}

var maxNumber, _ = new(big.Rat).SetString(origin.MaxNumber)

var decimalText = regexp.MustCompile(`^-?(0|[1-9]\d*)(?:\.(\d+))?$`)

// parseDecimal returns the number with all its digits, or why the text is not a decimal
// number, or has too many digits for the schema.
func parseDecimal(text string) (n pgtype.Numeric, reason string) {
	parts := decimalText.FindStringSubmatch(text)
	switch {
	case parts == nil:
		return n, "not a decimal number: " + quote(text)
	case len(parts[1]) > origin.MaxDigits:
		return n, fmt.Sprintf("more than %d digits before the point", origin.MaxDigits)
	case len(parts[2]) > origin.MaxDigits:
		return n, fmt.Sprintf("more than %d digits after the point", origin.MaxDigits)
	}
	if err := n.Scan(text); err != nil {
		return n, err.Error()
	}
	return n, ""
}

// instant is RFC 3339. It is stricter than time.Parse, which accepts commas and
// single digits.
var instant = regexp.MustCompile(`^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d{1,3}(\d*))?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)$`)

// parseInstant reads an instant. The API shows milliseconds, so a finer instant is
// refused and not rounded.
func parseInstant(text string) (t time.Time, reason string) {
	parts := instant.FindStringSubmatch(text)
	t, err := time.Parse(time.RFC3339, strings.ToUpper(text))
	t = t.UTC()
	switch {
	case parts == nil || err != nil: // err for dates that do not exist, as 30 February
		return t, "not an instant (RFC 3339): " + quote(text)
	case strings.Trim(parts[1], "0") != "":
		return t, "finer than a millisecond: " + quote(text)
	case t.Year() < 1 || t.Year() > 9999:
		return t, "outside the years 0001 to 9999: " + quote(text)
	}
	return t, ""
}
