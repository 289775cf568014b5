package origin

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sony/gobreaker/v2"
)

// A server that fails three times in a row is left alone, no longer than it is
// to rest, and tried by one caller then; failures that are not its own do not
// count.
func TestAServerThatFailsRests(t *testing.T) {
	for _, rest := range []time.Duration{primaryRest, standbyRest} {
		synctest.Test(t, func(t *testing.T) {
			b := newBreaker[int]("a server", rest)
			serve := func(err error) { _, _ = b.Execute(func() (int, error) { return 0, err }) }
			is := func(want gobreaker.State) {
				t.Helper()
				if b.State() != want {
					t.Errorf("%v, want %v", b.State(), want)
				}
			}
			down := fmt.Errorf("%w: refused", ErrUnavailable)
			for _, err := range []error{down, down, ErrTimeout, down, down, nil, down, down, errGivenUp, errors.New("a defect"), down, down} {
				serve(err)
				is(gobreaker.StateClosed)
			}
			serve(down)
			is(gobreaker.StateOpen)
			for range 2 {
				time.Sleep(rest - 1)
				is(gobreaker.StateOpen)
				time.Sleep(2 * time.Nanosecond)
				is(gobreaker.StateHalfOpen)
				serve(down)
				is(gobreaker.StateOpen)
			}
			time.Sleep(rest + 1)
			_, err := b.Execute(func() (int, error) {
				_, second := b.Execute(func() (int, error) { t.Error("two try it"); return 0, nil })
				if !errors.Is(breakerError(second), ErrUnavailable) {
					t.Errorf("the second is told %v", second)
				}
				return 0, nil
			})
			if err != nil {
				t.Error(err)
			}
			is(gobreaker.StateClosed)
		})
	}
}
