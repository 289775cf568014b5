package follower

import (
	"cmp"
	"strings"
)

// compareDecimals compares two numbers in the form in which Postgres writes a numeric:
// digits of any length, perhaps with a sign and a point. ok is false for anything else,
// such as NaN.
func compareDecimals(a, b string) (order int, ok bool) {
	x, okA := parseDecimal(a)
	y, okB := parseDecimal(b)
	if !okA || !okB {
		return 0, false
	}
	if x.sign != y.sign {
		return cmp.Compare(x.sign, y.sign), true
	}
	return x.sign * cmp.Or(cmp.Compare(len(x.whole), len(y.whole)), cmp.Compare(x.whole, y.whole), cmp.Compare(x.fraction, y.fraction)), true
}

// decimal is a number without leading zeros and without zeros at the end of its fraction.
// So fractions can be compared as texts.
type decimal struct {
	sign            int // 0 = the number is zero
	whole, fraction string
}

func parseDecimal(s string) (d decimal, ok bool) {
	digits, negative := strings.CutPrefix(s, "-")
	whole, fraction, _ := strings.Cut(digits, ".")
	if whole == "" || !areDigits(whole) || !areDigits(fraction) {
		return d, false
	}
	d.whole, d.fraction = strings.TrimLeft(whole, "0"), strings.TrimRight(fraction, "0")
	switch {
	case d.whole == "" && d.fraction == "":
	case negative:
		d.sign = -1
	default:
		d.sign = 1
	}
	return d, true
}

func areDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}
