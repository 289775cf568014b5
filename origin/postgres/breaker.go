package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sony/gobreaker/v2"
)

// Cooldowns of breakers: how long a failed server gets no queries. Then one query tries the
// primary; if that fails, it costs one caller its time limit. The cooldown of the primary is
// short, because nothing replaces the primary and a restart takes about that long. A standby is
// replaced by the primary, so its cooldown may be longer, and only Probe tries it.
const (
	PrimaryCooldown = 200 * time.Millisecond
	StandbyCooldown = time.Second
)

// Breaker opens after three failures in a row: the server gets no queries for a cooldown.
// Only ErrUnavailable counts as a failure, because the slow search of one tenant must not
// stop the queries of others. ErrWrongServer does not count, so that queries need not wait
// for a cooldown once the address leads to the right server.
type Breaker struct {
	circuit *gobreaker.CircuitBreaker[struct{}]
}

// NewBreaker returns a closed breaker.
func NewBreaker(cooldown time.Duration) Breaker {
	return Breaker{gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests:  1,
		Timeout:      cooldown,
		ReadyToTrip:  func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 3 },
		IsSuccessful: func(err error) bool { return !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrWrongServer) },
		IsExcluded:   func(err error) bool { return errors.Is(err, ErrCanceled) },
	})}
}

// Do runs the query unless the breaker is open. It classifies the query's error.
func (b Breaker) Do(query func() error) error {
	_, err := b.circuit.Execute(func() (struct{}, error) { return struct{}{}, Classify(query()) })
	if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) { // their texts would read as if there were too many clients
		return fmt.Errorf("%w: its last queries failed, and it is tried by one at a time", ErrUnavailable)
	}
	return err
}

// IsClosed says whether the server gets all queries.
func (b Breaker) IsClosed() bool { return b.circuit.State() == gobreaker.StateClosed }

// Probe asks the server if the cooldown is over. While all pages are served from caches,
// there is no query that would find out that the server is back.
func (b Breaker) Probe(ctx context.Context, ask func(context.Context) error) {
	if b.circuit.State() == gobreaker.StateHalfOpen {
		ctx, cancel := context.WithTimeout(ctx, PingTimeout)
		defer cancel()
		_ = b.Do(func() error { return ask(ctx) })
	}
}
