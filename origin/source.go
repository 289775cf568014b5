package origin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sony/gobreaker/v2"
)

// source is one Postgres that pages are asked of.
type source struct {
	pool    *pgxpool.Pool
	gate    *gate
	breaker *gobreaker.CircuitBreaker[Page]
}

func newSource(name string, pool *pgxpool.Pool, rest time.Duration) *source {
	return &source{pool: pool, gate: newGate(int(pool.Config().MaxConns)), breaker: newBreaker[Page](name, rest)}
}

// open says whether the server is left alone.
func (s *source) open() bool { return s.breaker.State() == gobreaker.StateOpen }

// failing says whether it is, or has not answered since.
func (s *source) failing() bool { return s.breaker.State() != gobreaker.StateClosed }

// serve reads when there is room, and not from a server that keeps failing.
func (s *source) serve(ctx context.Context, q *Query, read func() (Page, error)) (Page, error) {
	began, err := s.gate.enter(ctx, q.Workspace)
	if err != nil {
		return Page{}, err
	}
	defer s.gate.leave(q.Workspace, began)
	page, err := s.breaker.Execute(read)
	if err != nil {
		return Page{}, fmt.Errorf("fetch %s: %w", q.Collection, breakerError(err))
	}
	return page, nil
}

func (s *source) probe(ctx context.Context) { probe(ctx, s.breaker, s.pool) }

// probe asks for a sign of life where a server was left alone long enough.
func probe[T any](ctx context.Context, breaker *gobreaker.CircuitBreaker[T], pool *pgxpool.Pool) {
	if breaker.State() == gobreaker.StateHalfOpen {
		ctx, cancel := context.WithTimeout(ctx, pingTimeout)
		defer cancel()
		_, _ = breaker.Execute(func() (none T, err error) { return none, classify(pool.Ping(ctx)) })
	}
}

// How long a server that failed is left alone before the next caller tries it. A
// trial costs at most that caller's patience. Without the primary there is no
// answer, and it is away for no longer than a restart takes; without a standby
// there is.
const (
	primaryRest = 200 * time.Millisecond
	standbyRest = time.Second
)

// newBreaker opens after three failures in a row, for a rest. A server that
// answers, be it with an error, is not a failure: one tenant's slow search must
// not cut off the others. Nor is an answer of the wrong server: when the right
// one is back, nobody waits for the end of a rest.
func newBreaker[T any](name string, rest time.Duration) *gobreaker.CircuitBreaker[T] {
	return gobreaker.NewCircuitBreaker[T](gobreaker.Settings{
		Name:         name,
		MaxRequests:  1,
		Timeout:      rest,
		ReadyToTrip:  func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 3 },
		IsSuccessful: func(err error) bool { return !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrWrongServer) },
		IsExcluded:   func(err error) bool { return errors.Is(err, errGivenUp) },
	})
}

func breakerError(err error) error {
	if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}
