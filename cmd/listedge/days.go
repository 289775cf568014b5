package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// days is a duration that may be written in days: 7d, or as Go has it, 90m.
type days time.Duration

// UnmarshalText reads a duration, in days or as Go has it.
func (d *days) UnmarshalText(text []byte) error {
	hours := string(text)
	if n, err := strconv.ParseInt(strings.TrimSuffix(hours, "d"), 10, 32); err == nil && strings.HasSuffix(hours, "d") {
		hours = fmt.Sprint(n*24, "h")
	}
	duration, err := time.ParseDuration(hours)
	if err != nil {
		return fmt.Errorf("%q is not a duration like 12h or 7d", text)
	}
	*d = days(duration)
	return nil
}

// checkPeriod refuses a given period that is not positive, or longer than most (0 = none is).
func checkPeriod(flag string, p *days, most days) error {
	switch {
	case p == nil || *p > 0 && (most == 0 || *p <= most):
		return nil
	case most == 0:
		return fmt.Errorf("%s must be positive", flag)
	}
	return fmt.Errorf("%s must be positive and at most %dd", flag, time.Duration(most)/(24*time.Hour))
}
