package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// days is a duration that may be written in days: 7d, or as Go has it, 90m.
type days time.Duration

// UnmarshalText reads a duration.
func (d *days) UnmarshalText(text []byte) error {
	if number, ok := strings.CutSuffix(string(text), "d"); ok {
		n, err := strconv.ParseInt(number, 10, 64)
		if most := int64(math.MaxInt64 / (24 * time.Hour)); err != nil || n > most || n < -most {
			return fmt.Errorf("%q is not a duration like 12h or 7d", text)
		}
		*d = days(n) * days(24*time.Hour)
		return nil
	}
	duration, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration like 12h or 7d", text)
	}
	*d = days(duration)
	return nil
}

// String formats it as Go does.
func (d days) String() string { return time.Duration(d).String() }

// checkPeriod refuses a period that is not positive, or longer than most.
func checkPeriod(flag string, p days, most time.Duration) error {
	if p <= 0 || time.Duration(p) > most {
		return fmt.Errorf("%s must be positive and at most %dd", flag, most/(24*time.Hour))
	}
	return nil
}
