package changefeed

import (
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Failures remembers which operations Redis refused of late and has not carried
// out since: for want of a right or of memory, say. The zero value has none.
type Failures struct {
	mu sync.Mutex // guards of
	of map[string]failure
}

type failure struct {
	err error
	at  time.Time
}

// failureLife is how long an operation that nobody tries again counts as failing.
const failureLife = 10 * time.Second

// Note remembers what an operation came to, and returns it. That there was no
// answer says nothing.
func (f *Failures) Note(operation string, err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.of, operation)
		return nil
	}
	if refusal := redis.Error(nil); errors.As(err, &refusal) {
		if f.of == nil {
			f.of = map[string]failure{}
		}
		f.of[operation] = failure{err, time.Now()}
	}
	return err
}

// Latest is why an operation was refused last; nil if all are carried out.
func (f *Failures) Latest() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var latest failure
	for operation, one := range f.of {
		switch {
		case time.Since(one.at) > failureLife:
			delete(f.of, operation)
		case one.at.After(latest.at):
			latest = one
		}
	}
	return latest.err
}
