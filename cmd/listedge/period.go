package main

import (
	"fmt"
	"time"

	"github.com/prometheus/common/model"
)

// period is a positive length of time: 90d, or 12h.
type period time.Duration

// UnmarshalText reads a period.
func (p *period) UnmarshalText(text []byte) error {
	d, err := model.ParseDuration(string(text))
	if err != nil || d == 0 {
		return fmt.Errorf("must be a positive duration like 12h or 7d, and is %q", text)
	}
	*p = period(d)
	return nil
}
