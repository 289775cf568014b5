package changefeed

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Refusals remembers the last operation that Redis refused, for example for lack of a right or
// of memory. The zero value is ready to use.
type Refusals struct{ last atomic.Pointer[refusal] }

type refusal struct {
	err error
	at  time.Time
}

// refusalLife is how long a refusal is remembered. What is still refused is tried again sooner.
const refusalLife = 5 * time.Second

// Note returns the result of an operation, and remembers it if it is a refusal. Other errors,
// such as a timeout, are no answers of Redis.
func (r *Refusals) Note(err error) error {
	if errors.As(err, new(redis.Error)) {
		r.last.Store(&refusal{err, time.Now()})
	}
	return err
}

// Latest returns the latest refusal; nil = there is none.
func (r *Refusals) Latest() error {
	if last := r.last.Load(); last != nil && time.Since(last.at) < refusalLife {
		return last.err
	}
	return nil
}
