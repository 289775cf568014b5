package remedy

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

func TestFailuresAreExplained(t *testing.T) {
	for _, c := range []struct {
		name, why, remedy string
		err               error
	}{
		{"a time-out", "no answer in time", "", fmt.Errorf("ping: %w", context.DeadlineExceeded)},
		{"a time-out with a remedy", "no answer in time", "wait", Add(context.DeadlineExceeded, "wait")},
		{"several lines", "it is; a standby", "", errors.New("it is\n  a standby")},
		{"two servers", "connect: a: refused; b: refused", "", errors.New("connect:\n\ta: refused\n\tb: refused\n")},
		{"a server that was tried twice", "it fails: refused", "see it", Add(errors.New("it fails:\n\trefused\n\trefused"), "see it")},
		{"an error that knows the remedy", "write: it is full", "make room", fmt.Errorf("write: %w", Add(errors.New("it is full"), "make room"))},
	} {
		t.Run(c.name, func(t *testing.T) {
			if why, remedy := Explain(c.err); why != c.why || remedy != c.remedy {
				t.Errorf("%q, %q", why, remedy)
			}
		})
	}
}
