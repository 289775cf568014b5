// Package remedy prints errors for operators, with what they can do about them.
package remedy

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
)

type known struct {
	error
	remedy string
}

func (k *known) Error() string { return k.error.Error() + ": " + k.remedy }

func (k *known) Unwrap() error { return k.error }

// Add adds to an error, if there is one, what to do about it, behind a colon.
func Add(err error, remedy string) error {
	if err == nil {
		return nil
	}
	return &known{err, remedy}
}

// Explain returns a failure in words for an operator, and the remedy that Add gave it; empty =
// none.
func Explain(err error) (why, remedy string) {
	knows, timeout := (*known)(nil), net.Error(nil)
	if errors.As(err, &knows) {
		remedy = knows.remedy
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		return "no answer in time", remedy
	}
	return OneSentence(strings.TrimSuffix(err.Error(), ": "+remedy)), remedy
}

// OneSentence joins the lines of an error to one line. It omits repeated lines, because a
// server that was tried twice may give the same error twice.
func OneSentence(s string) string {
	var lines []string
	for line := range strings.Lines(s) {
		line = strings.Join(strings.Fields(line), " ")
		if line != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": ")
}
