package postgres

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/sony/gobreaker/v2"

	"listedge/internal/boottime/boottimetest"
)

// After three failures in a row a server gets no query for the cooldown, and then
// one. Errors that are not the server's do not count.
func TestBreaker(t *testing.T) {
	for _, cooldown := range []time.Duration{PrimaryCooldown, StandbyCooldown} {
		synctest.Test(t, func(t *testing.T) {
			b := NewBreaker(cooldown)
			run := func(err error) { _ = b.Do(func() error { return err }) }
			is := func(want gobreaker.State) {
				t.Helper()
				if b.circuit.State() != want {
					t.Errorf("%v, want %v", b.circuit.State(), want)
				}
			}
			down := fmt.Errorf("%w: refused", ErrUnavailable)
			for _, err := range []error{down, down, ErrTimeout, down, down, nil, down, down, ErrCanceled, &pgconn.PgError{Code: "22012"}, down, down} {
				run(err)
				is(gobreaker.StateClosed)
			}
			run(down)
			is(gobreaker.StateOpen)
			for range 2 {
				boottimetest.Pass(cooldown - 1)
				is(gobreaker.StateOpen)
				boottimetest.Pass(2 * time.Nanosecond)
				is(gobreaker.StateHalfOpen)
				run(down)
				is(gobreaker.StateOpen)
			}
			boottimetest.Pass(cooldown + 1)
			err := b.Do(func() error {
				second := b.Do(func() error { t.Error("two queries try it"); return nil })
				if !errors.Is(second, ErrUnavailable) {
					t.Errorf("the second got %v", second)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			is(gobreaker.StateClosed)
		})
	}
}
