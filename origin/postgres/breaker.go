package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sony/gobreaker/v2"
)

// A breaker's cooldown is how long a server that failed gets no queries; then
// one query tries it. A trial costs at most one caller's time limit. Without the
// primary there is no answer, and it is away for no longer than a restart takes;
// without a standby the primary answers.
const (
	PrimaryCooldown = 200 * time.Millisecond
	StandbyCooldown = time.Second
)

// Breaker stops queries to a server after three failures in a row, for a
// cooldown. Only ErrUnavailable is a failure: one tenant's slow search must not
// cut off the others. ErrWrongServer is none either: when the right server is
// back, nobody waits for the end of a cooldown.
type Breaker struct {
	circuit *gobreaker.CircuitBreaker[struct{}]
}

// NewBreaker returns a closed breaker.
func NewBreaker(name string, cooldown time.Duration) Breaker {
	return Breaker{gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Name:         name,
		MaxRequests:  1,
		Timeout:      cooldown,
		ReadyToTrip:  func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 3 },
		IsSuccessful: func(err error) bool { return !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrWrongServer) },
		IsExcluded:   func(err error) bool { return errors.Is(err, ErrCanceled) },
	})}
}

// Do runs the query unless the breaker is open. It returns errors by their kind.
func (b Breaker) Do(query func() error) error {
	_, err := b.circuit.Execute(func() (struct{}, error) { return struct{}{}, Classify(query()) })
	if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// IsOpen says whether the server gets no queries at the moment.
func (b Breaker) IsOpen() bool { return b.circuit.State() == gobreaker.StateOpen }

// IsClosed says whether the server gets all queries.
func (b Breaker) IsClosed() bool { return b.circuit.State() == gobreaker.StateClosed }

// Probe pings the server once the cooldown is over: without it nobody would
// notice that the server is back while the caches have all that is wanted.
func (b Breaker) Probe(ctx context.Context, pool *pgxpool.Pool) {
	if b.circuit.State() == gobreaker.StateHalfOpen {
		ctx, cancel := context.WithTimeout(ctx, PingTimeout)
		defer cancel()
		_ = b.Do(func() error { return pool.Ping(ctx) })
	}
}
